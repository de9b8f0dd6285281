"""The verb `outdated`."""

from __future__ import annotations

from drydock.cli.task_helpers import choose_variants, here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.model.shared_options import JsonOption, RowOrAllOption


class OutdatedOptions(RowOrAllOption, JsonOption):
    """Which locks are compared with their sources."""


@Verb
def list_outdated(options: OutdatedOptions) -> None:
    """List what a new lock would change, and newer versions outside the stack's bounds. Writes nothing."""
    from drydock.lock.drift import drift_search
    from drydock.lock.drift.ask import LiveUpstream
    from drydock.lock.drift.drift_record import format_drift

    drift = drift_search.find_drift(here(), choose_variants(options.target), LiveUpstream())
    write_output(format_json(dump_record(drift)) if options.json else format_drift(drift))
    drift_search.raise_if_found(drift)
