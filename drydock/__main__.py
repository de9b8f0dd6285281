"""Builds one variant offline and without BuildKit's cache, and prints what came out: the second build of `verify`."""

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
    """Take variant, platform, a builder or none, whether to use a kept foundation, and the project's layers.

    The texts of the two in between may be empty. Returns the exit code.
    """
    target, platform, builder, below, *layers = arguments
    project = layered(Path(layers[0]), [*map(Path, layers[1:])])
    try:
        job = prepare(project, target, BuildOptions(platform=platform, offline=True))
        bake = partial(buildx.bake, builder=builder or None, no_cache=True)
        built = run(build.steps(job, None, no_cache=not below, into_engine=False), bake)
    except DrydockError as error:
        log(str(error))
        return error.code
    emit(dumps(dump(built)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
