from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
import yaml

from drydock.prove import demo_topology
from drydock.topology.topology_file import read_topology
from tests.support.topology_files import HOSTS

SUBNET = ipaddress.IPv4Network("172.16.213.0/28")
TABLE = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
)


@pytest.mark.parametrize("name", demo_topology.SHAPES)
def test_each_demo_is_a_valid_topology(name: str, tmp_path: Path) -> None:
    text = yaml.safe_dump(demo_topology.make_demo_topology(demo_topology.SHAPES[name], Path("/models/m"), SUBNET))
    (tmp_path / "host.json").write_text((HOSTS / "cpu-xeon8380-2s" / "host.json").read_text())
    (tmp_path / "topology.yaml").write_text(text)
    topology = read_topology(tmp_path / "topology.yaml").topology
    addresses = {node.address for node in topology.nodes}
    assert len(addresses) == len(topology.nodes) == (2 if name == "1p1d" else 3)
    assert all(ipaddress.ip_address(address) in SUBNET for address in addresses)
    assert str(SUBNET.network_address + 1) not in addresses


def test_routes_are_networks_without_the_default() -> None:
    assert [*demo_topology._parse_route_networks(TABLE)] == [ipaddress.IPv4Network("192.168.0.0/24")]
