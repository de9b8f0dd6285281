"""A finding of topologies as a line. Pure."""

from __future__ import annotations

from drydock.model.topology_findings import FINDINGS


def finding(number: str, found: str) -> str:
    """Return a finding as one line: its id, what was found, what to do."""
    known = FINDINGS[number]
    return f"{number}: {known.text.format(found)}; {known.remediation}"
