"""`fabric` over two containers of the CPU image: an all-reduce by Gloo, with figures on both."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import docker
import pytest
from docker.models.networks import Network

from drydock.build import build
from entrypoints.core import errors

pytestmark = pytest.mark.proves("cpu-vllm0.32", "packages")

ROW = re.compile(r"^ +(\d+) +([\d.]+) +([\d.]+)$", re.MULTILINE)


@pytest.fixture
def network() -> Iterator[Network]:
    """A network whose name service knows its containers."""
    made = docker.from_env().networks.create(f"drydock-fabric-{secrets.token_hex(4)}")
    yield made
    made.remove()


def test_two_containers_measure_an_all_reduce(built: build.Built, network: Network) -> None:
    client = docker.from_env()
    names = [f"{network.name}-{number}" for number in range(2)]
    words = ["fabric", "--peers", ",".join(names), "--peers-wait", "120"]
    containers = [
        client.containers.run(built.image, words, name=name, network=network.name, detach=True) for name in names
    ]
    try:
        codes = [container.wait(timeout=400)["StatusCode"] for container in containers]
        said = [container.logs(stdout=True, stderr=False).decode() for container in containers]
        assert codes == [errors.OK, errors.OK], [container.logs().decode()[-2000:] for container in containers]
    finally:
        for container in containers:
            container.remove(force=True, v=True)

    rows = [(int(size), float(time), float(speed)) for size, time, speed in ROW.findall(said[0])]
    assert "all-reduce over 2 ranks (torch.distributed, gloo)" in said[0]
    assert [size for size, _, _ in rows] == [1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26]
    assert rows[-1][2] > 0.01
    assert "PASS    NET-011" in said[0]
    assert ROW.findall(said[1]) == ROW.findall(said[0])


def test_a_host_that_does_not_come_is_named(built: build.Built, network: Network) -> None:
    words = ["fabric", "--peers", "127.0.0.1,no-such-host.invalid", "--peers-wait", "1"]
    container = docker.from_env().containers.run(built.image, words, network=network.name, detach=True)
    try:
        assert container.wait(timeout=60)["StatusCode"] == errors.USAGE
        assert b"no-such-host.invalid: no address within 1 s" in container.logs()
    finally:
        container.remove(force=True, v=True)
