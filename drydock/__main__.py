"""Builds one variant offline and without BuildKit's cache, and prints what came out: the second build of `verify`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from drydock.build import build, buildx
from drydock.build.build_job import BuildOptions, prepare_job
from drydock.config.project_choice import make_layered_project
from drydock.core.console import log, write_output
from drydock.core.errors import DrydockError
from drydock.core.files import format_json
from drydock.model.record import dump_record


def main(arguments: list[str]) -> int:
    """Take variant, platform, a builder or none, whether to use a kept foundation, and the project's layers.

    The texts of the two in between may be empty. Returns the exit code.
    """
    target, platform, builder, below, *layers = arguments
    project = make_layered_project(Path(layers[0]), [*map(Path, layers[1:])])
    try:
        job = prepare_job(project, target, BuildOptions(platform=platform, offline=True))
        bake = partial(buildx.run_bake, builder=builder or None, no_cache=True)
        built = build.build_image(job, bake=bake, no_cache=not below, into_engine=False)
    except DrydockError as error:
        log(str(error))
        return error.code
    write_output(format_json(dump_record(built)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
