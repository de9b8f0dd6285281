"""`fabric` over containers of the CPU image: an all-reduce by Gloo, with figures on each; also by `topology check`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import pytest
from docker.errors import NotFound
from testcontainers.core.network import Network

from drydock.build import build
from drydock.config.project_choice import DRYDOCK
from drydock.prove import demo_topology
from drydock.verbs.topology_check_verb import TopologyCheckOptions, find_node_findings
from entrypoints.core import errors
from tests.support.started_containers import start_container

pytestmark = pytest.mark.proves("cpu-vllm0.32", "packages")

ROW = re.compile(r"^ +(\d+) +([\d.]+) +([\d.]+)$", re.MULTILINE)


@pytest.fixture
def network() -> Iterator[Network]:
    """A network whose name service knows its containers."""
    with Network() as network:
        yield network


def test_two_containers_measure_an_all_reduce(built: build.Built, network: Network) -> None:
    names = ["host0", "host1"]
    words = ("fabric", "--peers", ",".join(names), "--peers-wait", "120")
    with ExitStack() as stack:
        hosts = [start_container(built.image, *words, network=network, network_aliases=[name]) for name in names]
        containers = [stack.enter_context(host) for host in hosts]
        codes = [container.wait(timeout=400)["StatusCode"] for container in containers]
        outputs = [container.logs(stdout=True, stderr=False).decode() for container in containers]
        assert codes == [errors.OK, errors.OK], [container.logs().decode()[-2000:] for container in containers]

    rows = [(int(size), float(time), float(speed)) for size, time, speed in ROW.findall(outputs[0])]
    assert "all-reduce over 2 ranks (torch.distributed, gloo)" in outputs[0]
    assert [size for size, _, _ in rows] == [1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26]
    assert rows[-1][2] > 0.01
    assert "PASS    NET-011" in outputs[0]
    assert ROW.findall(outputs[1]) == ROW.findall(outputs[0])


@pytest.fixture
def cache() -> Iterator[None]:
    """Removes the volume of the servers' cache, which a check mounts too, unless it was there."""
    volumes, name = docker.from_env().volumes, "drydock-cpu-cache"
    before = {volume.name for volume in volumes.list()}
    yield
    if name not in before:
        with contextlib.suppress(NotFound):
            volumes.get(name).remove()


@pytest.mark.usefixtures("cache")
def test_the_check_of_a_topology_measures_over_its_nodes(built: build.Built, model: Path, tmp_path: Path) -> None:
    file = demo_topology.plan_demo_topology(DRYDOCK, tmp_path, demo_topology.SHAPES["tp3"], model, built.image, "")
    findings = find_node_findings(DRYDOCK, TopologyCheckOptions(file=str(file), format="compose", fabric=True))

    assert [finding for finding in findings if finding.severity == "FAIL"] == []
    fabric_findings = [finding for finding in findings if finding.id == "NET-011"]
    assert [finding.severity for finding in fabric_findings] == ["INFO"] * 3
    assert "3 ranks on 3 hosts" in fabric_findings[0].text
    assert all(float(re.fullmatch(r"(n\d): ([\d.]+) GB/s", finding.found)[2]) > 0.01 for finding in fabric_findings)  # type: ignore[index]
