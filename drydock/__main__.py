"""Builds one variant offline and without cache, and prints what came out: the second build of `./inv verify`."""

from __future__ import annotations

import sys
from pathlib import Path

from drydock.build import build
from drydock.build.job import BuildOptions, prepare
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
        built = build.build(job, builder=builder or None, no_cache=True, into_engine=False)
    except DrydockError as error:
        log(str(error))
        return error.code
    emit(dumps(dump(built)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
