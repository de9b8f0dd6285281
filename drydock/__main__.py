"""Builds one variant offline and without BuildKit's cache: the second build of `./inv verify`.

Its own cache folder has nothing but fetched files, and maybe the foundation to start from. Prints what came out.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from drydock.build import build, buildx
from drydock.build.job import BuildOptions, prepare
from drydock.build.steps import run
from drydock.config.project import layered
from drydock.core.console import emit, log
from drydock.core.errors import DrydockError
from drydock.core.files import dumps
from drydock.model.record import dump


def main(arguments: list[str]) -> int:
    """Take variant, platform, a builder or an empty text, and the layers of the project; return the exit code."""
    target, platform, builder, *layers = arguments
    project = layered(Path(layers[0]), [*map(Path, layers[1:])])
    try:
        job = prepare(project, target, BuildOptions(platform=platform, offline=True))
        bake = partial(buildx.bake, builder=builder or None, no_cache=True)
        built = run(build.steps(job, None, into_engine=False), bake)
    except DrydockError as error:
        log(str(error))
        return error.code
    emit(dumps(dump(built)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
