"""Reads what is said about topologies. IO (reads)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from drydock.config.project_choice import DRYDOCK
from drydock.config.project_layers import merge_layers, read_layers
from drydock.config.validation import validate_document
from drydock.model.topology_findings import TopologyFinding, TopologyFindings

FILE, TRANSLATED = "templates/topology.yaml", "templates/topology.??.yaml"


@cache
def read_topology_findings() -> Mapping[str, TopologyFinding]:
    """Return the findings of topologies by id. Raises InputError."""
    names = (FILE, *(DRYDOCK.name_of(path) for path in DRYDOCK.glob(TRANSLATED)))
    return validate_document(TopologyFindings, merge_layers(read_layers(DRYDOCK, name) for name in names)).findings
