"""`topology check` on machines that are damaged, one fault at a time: each is found, and no other node is blamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.verbs.topology_check_verb import TopologyCheckOptions, find_node_findings
from entrypoints.core.records import Finding
from tests.support import serving_ssh
from tests.support.machines_ssh import Machine, Machines

LISTEN = "import socket, time; s = socket.create_server(('', {port})); time.sleep(600)"


class Topology(NamedTuple):
    """A topology on two machines."""

    options: dict[str, Any]
    nodes: tuple[Machine, ...]

    def findings(self, **changes: Any) -> tuple[Finding, ...]:
        return find_node_findings(DRYDOCK, TopologyCheckOptions(**{**self.options, **changes}))


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory, two: Machines, image: str) -> Topology:
    file, model = serving_ssh.write(tmp_path_factory.mktemp("check"), two, image)
    for node in two.nodes:
        node.run("docker", "pull", "--quiet", image)
    options = {"file": str(file), "model": str(model), "target": "cpu", **vars(two.ssh)}
    return Topology(options, two.nodes)


def bad(findings: tuple[Finding, ...], *prefixes: str) -> dict[str, list[str]]:
    """Return id → what was found, of failures and warnings; of some prefixes only."""
    result: dict[str, list[str]] = {}
    for finding in findings:
        if finding.severity in ("FAIL", "WARN") and finding.id.startswith(prefixes or ("TOPO", "NET")):
            result.setdefault(finding.id, []).append(finding.found)
    return result


def test_machines_as_planned_have_no_failure_but_that_they_are_no_recorded_machine(topology: Topology) -> None:
    findings = topology.findings()
    finding_ids = {finding.id for finding in findings}
    assert {"TOPO-020", "TOPO-021", "TOPO-022", "TOPO-034"} <= finding_ids
    assert {"NET-001", "NET-002", "NET-003", "NET-004", "NET-005", "NET-008", "NET-009"} <= finding_ids
    assert bad(findings) == {}


@contextmanager
def another_image(node: Machine, image: str) -> Iterator[None]:
    """The engine has no image of the plan's digest."""
    node.run("docker", "image", "rm", "--force", image)
    yield
    node.run("docker", "pull", "--quiet", image)


@contextmanager
def smaller_mtu(node: Machine) -> Iterator[None]:
    node.run("ip", "link", "set", "dev", "eth0", "mtu", "1280")
    yield
    node.run("ip", "link", "set", "dev", "eth0", "mtu", "1500")


@contextmanager
def taken_port(node: Machine, port: int) -> Iterator[None]:
    node.run("systemd-run", "--quiet", "--unit=taken", "python3", "-c", LISTEN.format(port=port))
    yield
    node.run("systemctl", "stop", "taken")


def test_an_image_that_is_not_the_plans_is_found(topology: Topology, image: str) -> None:
    with another_image(topology.nodes[1], image):
        texts_by_id = bad(topology.findings())
    assert [text.partition(":")[0] for text in texts_by_id["TOPO-021"]] == ["n1"]
    assert "TOPO-034" in texts_by_id


def test_a_taken_port_is_found(topology: Topology) -> None:
    with taken_port(topology.nodes[0], 20000):
        texts_by_id = bad(topology.findings())
    assert any("port 20000" in text for text in texts_by_id["NET-005"])


def test_a_lowered_mtu_is_found_on_its_node_and_on_the_way_from_the_other(topology: Topology) -> None:
    with smaller_mtu(topology.nodes[1]):
        texts_by_id = bad(topology.findings())
    assert any(text.startswith("n0: eth0 has an MTU of 1500") for text in texts_by_id["NET-008"])


def test_a_machine_that_ssh_does_not_reach_is_a_finding_and_the_other_is_judged(topology: Topology) -> None:
    topology.nodes[1].run("systemctl", "stop", "ssh")
    try:
        findings = topology.findings()
    finally:
        topology.nodes[1].run("systemctl", "start", "ssh")
    texts_by_id = bad(findings, "TOPO-020")
    assert [text.partition(":")[0] for text in texts_by_id["TOPO-020"]] == ["n1"]
    assert any(finding.id == "TOPO-022" and finding.found.startswith("n0:") for finding in findings)


def test_a_host_key_that_nobody_named_is_not_believed(topology: Topology, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").touch()
    findings = topology.findings(known_hosts=str(tmp_path / "known_hosts"))
    texts = bad(findings, "TOPO-020")["TOPO-020"]
    assert len(texts) == 2
    assert all("Host key verification failed" in text for text in texts)
