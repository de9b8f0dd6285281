"""The verb `fetch`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.shared_options import (
    AlwaysJsonOption,
    ContextOption,
    LockedOptions,
    OfflineOption,
    PlatformOption,
    RowOption,
    VerboseOption,
)


class FetchOptions(
    RowOption, OfflineOption, PlatformOption, ContextOption, LockedOptions, AlwaysJsonOption, VerboseOption
):
    """What is downloaded."""


@Verb
def fetch_inputs(options: FetchOptions) -> None:
    """Download everything that a lock pins into the store and print the build contexts."""
    from drydock.build.build_job import BuildOptions
    from drydock.inputs import overrides
    from drydock.projects import locking

    settings = BuildOptions(options.platform or None, options.offline, overrides.parse_contexts(options.context))
    job = locking.job_of(here(), options.target, settings, locked=options.locked, supplied_folders=options.supplied)
    write_output(format_json(locking.fetch_pins(job)))
