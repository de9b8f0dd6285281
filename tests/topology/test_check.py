"""`topology check` of a plan in containers of this machine, with the networks that Compose gives the nodes."""

from __future__ import annotations

import secrets
from pathlib import Path

from drydock.config.project_choice import DRYDOCK
from drydock.verbs.topology_check_verb import TopologyCheckOptions, find_node_findings
from tests.support.running_topology import planned


def test_the_check_of_its_nodes_passes(folder: Path, images: tuple[str, str]) -> None:
    file = planned(folder, images, "1p1d", f"check-{secrets.token_hex(3)}")
    findings = find_node_findings(DRYDOCK, TopologyCheckOptions(file=str(file), format="compose"))

    assert [finding for finding in findings if finding.severity == "FAIL"] == []
    assert any(finding.severity == "PASS" for finding in findings)
