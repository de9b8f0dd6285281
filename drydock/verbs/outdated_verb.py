"""The verb `outdated`."""

from __future__ import annotations

from drydock.cli.task_helpers import choose_variants, here, write_result
from drydock.cli.verb import Verb
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
    write_result(drift, format_drift(drift), json=options.json)
    drift_search.raise_if_found(drift)
