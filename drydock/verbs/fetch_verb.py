"""The verb `fetch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    PreviewOption,
    RowOption,
    VerboseOption,
)

if TYPE_CHECKING:
    from drydock.build.build_job import Job


class FetchOptions(
    RowOption,
    OfflineOption,
    PlatformOption,
    ContextOption,
    LockedOptions,
    PreviewOption,
    AlwaysJsonOption,
    VerboseOption,
):
    """What is downloaded."""


@Verb
def fetch_inputs(options: FetchOptions) -> None:
    """Download everything that a lock pins into the store and print the build contexts."""
    from drydock.build.build_job import BuildOptions
    from drydock.inputs import overrides
    from drydock.model.record import dump_record
    from drydock.projects import pinned_job

    settings = BuildOptions(options.platform or None, options.offline, overrides.parse_contexts(options.context))
    if options.dry_run:
        from drydock.build.build_preview import preview_fetch

        job = pinned_job.prepare_previewed_job(here(), options.target, settings, locked=options.locked)
        write_output(format_json(dump_record(preview_fetch(job))))
        return
    job = pinned_job.prepare_pinned_job(
        here(), options.target, settings, locked=options.locked, supplied_folders=options.supplied
    )
    write_output(format_json(fetch_pins(job)))


def fetch_pins(job: Job) -> dict[str, str]:
    """Fetch everything that a job's lock pins, the base image too; return the build contexts. Raises FetchError."""
    from drydock.build import build
    from drydock.inputs.base_images import fetch_base
    from drydock.inputs.store import default_store
    from drydock.model.locked import LockedImageBase

    base = job.pins.base
    if isinstance(base, LockedImageBase) and not job.offline and "base" not in job.context_overrides:
        fetch_base(base, job.platform, default_store())
    contexts = build.fetch_contexts(job)
    if job.offline:
        build.refuse_pulls(job, contexts)
    return contexts
