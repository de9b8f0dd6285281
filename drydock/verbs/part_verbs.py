"""Verbs that show the parts of a build: fetch, render, bake, engine."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.options import (
    AlwaysJsonOption,
    CheckOption,
    ContextOption,
    JsonOption,
    LockedOptions,
    OfflineOption,
    PlatformOption,
    RowOption,
    RowOrAllOption,
    Verb,
    VerboseOption,
)
from drydock.cli.task_helpers import choose_variants, here, report_checked, report_written
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record


class EngineOptions(AlwaysJsonOption):
    """What happens to the engine."""

    stop: bool = False
    """stop the engine that drydock started"""


@Verb
def start_engine(options: EngineOptions) -> None:
    """Check that a suitable Docker engine is running. On Debian as root, install and start one if needed."""
    from drydock.engine import daemon

    write_output(
        format_json({"stopped": daemon.stop_engine()} if options.stop else dump_record(daemon.ensure_engine()))
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


class RenderRowOptions(RowOrAllOption, CheckOption, JsonOption):
    """What is rendered."""

    profile: bool = False
    """write nothing; print the profile.json of --target's image"""


@Verb
def render_rows(options: RenderRowOptions) -> None:
    """Write images/VARIANT/Dockerfile from the matrix and the templates; in a project upgrade.json of its rows too."""
    from drydock.build import render
    from drydock.lock import lockfile
    from drydock.projects import row_record_file

    if options.profile:
        write_output(render.profile_text(find_variant(read_matrix(here()), options.target)))
        return
    locked = lockfile.read_current(here(), choose_variants(options.target))
    if options.check:
        for variant, lock in locked:
            row_record_file.check_row_files(here(), variant, lock)
        report_checked(json=options.json)
    else:
        report_written(row_record_file.write_rows(here(), locked), json=options.json)


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
