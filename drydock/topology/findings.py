"""A finding of topologies as a line. Pure."""

from __future__ import annotations

from drydock.model.topology_findings import FINDINGS


def format_topology_finding(number: str, detail: str) -> str:
    """Return a finding as one line: its id, what was found, what to do."""
    definition = FINDINGS[number]
    return f"{number}: {definition.text.format(detail)}; {definition.remediation}"
