"""The job of a row with everything pinned, which build and fetch need. IO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drydock.build import pins
from drydock.build.build_job import BuildOptions, Job, prepare_job
from drydock.core.project import Project


def prepare_pinned_job(
    project: Project,
    target: str,
    options: BuildOptions,
    *,
    locked: bool = False,
    supplied_folders: Sequence[str] = (),
    stand_ins: bool = False,
) -> Job:
    """Return the job of a target with everything pinned, or with stand-ins; say which committed files are stale now.

    Raises what `prepare_job` and `pin_missing` raise.
    """
    if stand_ins:
        from drydock.build import standins  # noqa: PLC0415 - it imports what downloads

        return standins.stand_in(project, target, options)
    job = prepare_job(project, target, options)
    pinned = pins.pin_missing(
        job,
        refused=pins.find_pin_refusal(locked=locked, offline=options.offline),
        supplied_folders=[Path(folder) for folder in supplied_folders],
    )
    if pinned.lock != job.lock:
        from drydock.projects import stale_files  # noqa: PLC0415 - it imports what makes pages; few builds pin anything

        stale_files.report_stale_files(project)
    return pinned


def prepare_previewed_job(project: Project, target: str, options: BuildOptions, *, locked: bool = False) -> Job:
    """Return the job of a target for a dry run, which pins nothing: what the lock lacks is missing in it, too.

    Raises what `prepare_job` raises, and UnresolvedError where `prepare_pinned_job` refuses to pin.
    """
    job = prepare_job(project, target, options)
    refused = pins.find_pin_refusal(locked=locked, offline=options.offline)
    return pins.pin_missing(job, refused=refused) if refused else job
