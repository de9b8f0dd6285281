"""templates/topology.yaml: what the plan of a topology, and `topology check`, warn of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from drydock.model.checks import Translations
from drydock.model.names import Line
from drydock.model.record import Record

TopologyFindingId = Annotated[str, Field(pattern="^TOPO-[0-9]{3}$")]


class TopologyFinding(Record):
    """A finding of topologies."""

    text: Line = Field(description="Required: what is the matter; {} is what was found.")
    passed: Line = Field(
        default="",
        description="Optional: what to say where `topology check` finds that nothing is the matter; {} is the node.",
    )
    remediation: Line = Field(description="Required: what to do about it.")
    source: Line = Field(description="Required: manual, vendor page, source file or measurement.")


class TopologyFindings(Record):
    """All of them, with their texts in other languages."""

    findings: Mapping[TopologyFindingId, TopologyFinding] = {}
    """By id, which is never used again for something else."""
    translations: Translations = {}
