"""The verb `outdated`."""

from __future__ import annotations

from drydock.cli.task_helpers import choose_variants, here
from drydock.cli.verb import Verb
from drydock.model.shared_options import JsonOption, RowOrAllOption


class OutdatedOptions(RowOrAllOption, JsonOption):
    """Which locks are compared with their sources."""


@Verb
def list_outdated(options: OutdatedOptions) -> None:
    """List what a new lock would change, and newer versions outside the stack's bounds. Writes nothing."""
    from drydock.lock.drift import drift_tasks

    drift_tasks.print_outdated_pins(here(), choose_variants(options.target), json=options.json)
