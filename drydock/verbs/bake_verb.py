"""The verb `bake`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.shared_options import AlwaysJsonOption, ContextOption, PlatformOption, RowOption


class BakeOptions(RowOption, PlatformOption, ContextOption, AlwaysJsonOption):
    """What the bake file builds."""

    output: str = "build/image"
    """folder for the image's OCI layout"""


@Verb
def print_bake_file(options: BakeOptions) -> None:
    """Print a variant's docker-bake.json, which `docker buildx bake -f` can build without drydock. Uses no network."""
    from drydock.build import build
    from drydock.build.build_job import BuildOptions, prepare_job
    from drydock.inputs import overrides

    contexts = overrides.parse_contexts(options.context)
    settings = BuildOptions(options.platform or None, offline=True, context_overrides=contexts)
    job = prepare_job(here(), options.target, settings)
    build.refuse_bake(job)
    write_output(format_json(build.bake_file(job, build.fetch_contexts(job), Path(options.output).absolute())))
