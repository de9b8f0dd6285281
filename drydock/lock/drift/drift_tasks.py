"""Implement `outdated`. IO."""

from __future__ import annotations

from collections.abc import Sequence

from drydock.core.project import Project
from drydock.model.variant import Variant


def print_outdated_pins(project: Project, variants: Sequence[Variant], *, json: bool) -> None:
    """Print what a new lock would change, and newer versions outside the bounds."""
    from drydock.lock.drift import drift_search

    drift_search.report_drift(project, variants, json=json)
