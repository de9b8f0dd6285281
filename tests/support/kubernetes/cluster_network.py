"""Network namespaces of the test cluster's nodes: no port, route or iptables rule on this machine. IO.

The first node has a bridge, to which each other is connected by a pair of virtual interfaces. Routes lead to the pods
of each node. A namespace lives as long as the process that holds it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.kubernetes.cluster_processes import start
from tests.support.waiting import wait_until

BRIDGE = "br0"
NOWHERE = "10.250.0.254"
"""Gateway of the default route, without which packets to a service's address would be refused before iptables sees
them. Nothing answers there."""


class Network(NamedTuple):
    """A node's network."""

    number: int
    holder: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"10.250.0.{self.number}"

    @property
    def pods(self) -> str:
        return f"10.244.{self.number}.0/24"

    def inside(self, *command: str | Path) -> tuple[str, ...]:
        """Return a command that runs in this network."""
        return "nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *map(str, command)

    def run(self, *command: str) -> None:
        subprocess.run(self.inside(*command), check=True, capture_output=True)


def networks(count: int, log: Path) -> tuple[Network, ...]:
    """Return connected networks, numbered from 1."""
    node_networks = tuple(Network(number, _holder(log)) for number in range(1, count + 1))
    first = node_networks[0]
    first.run("ip", "link", "add", BRIDGE, "type", "bridge")
    _configure(first, BRIDGE, node_networks)
    for network in node_networks[1:]:
        port = f"node{network.number}"
        peer = ("peer", "name", "eth0", "netns", str(network.holder.pid))
        first.run("ip", "link", "add", port, "type", "veth", *peer)
        first.run("ip", "link", "set", port, "master", BRIDGE, "up")
        _configure(network, "eth0", node_networks)
    return node_networks


def _holder(log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a new network namespace."""
    process = start(log, "unshare", "--net", "sleep", "infinity")
    ours, theirs = Path("/proc/self/ns/net"), Path(f"/proc/{process.pid}/ns/net")
    wait_until(lambda: theirs.readlink() != ours.readlink(), "a network namespace")
    return process


def _configure(node: Network, interface: str, peers: Sequence[Network]) -> None:
    node.run("ip", "link", "set", "lo", "up")
    node.run("ip", "address", "add", f"{node.address}/24", "dev", interface)
    node.run("ip", "link", "set", interface, "up")
    node.run("ip", "route", "add", "default", "via", NOWHERE)
    for peer in peers:
        if peer is not node:
            node.run("ip", "route", "add", peer.pods, "via", peer.address)
    node.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
