"""Every port of a topology that is allocated, once; the router's is set in topology.yaml (`Router.port`). Pure.

A purpose has the same port on every node: vLLM's compile cache has VLLM_NIXL_SIDE_CHANNEL_PORT and Mooncake's ports in
its key, so nodes with other ports would compile again. Source: vLLM 0.32 envs.py, compile_factors (ignored_factors).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from drydock.config.validation import Problem
from drydock.core.errors import InputError

HIGHEST = 65535
RAY_WORKERS = range(10002, 20000)
"""Ports of Ray's workers on each node. Source: Ray 2.60 scripts/scripts.py, --min-worker-port, --max-worker-port."""
API, STATUS, MASTER, RPC = "api", "status", "master", "rpc"
FLAGS: Mapping[str, str] = {
    API: "--port",
    STATUS: "--status-port",
    MASTER: "--master-port",
    RPC: "--data-parallel-rpc-port",
}
"""Purpose → the flag that takes it."""


class Need(NamedTuple):
    """Ports in a row for one purpose."""

    purpose: str
    length: int = 1
    least: int = 1

    def __or__(self, second: Need) -> Need:
        """Return what covers both."""
        return Need(self.purpose, max(self.length, second.length), max(self.least, second.least))


class UsedPort(NamedTuple):
    """A port that a node listens on, and for what."""

    node: str
    port: int
    what: str


def allocate_ports(needs: Iterable[Need], base: int, reserved_ports: Iterable[int]) -> dict[str, int]:
    """Return the first port of each purpose, in order from `base`, around those taken. Raises InputError."""
    joined: dict[str, Need] = {}
    for need in needs:
        joined[need.purpose] = joined[need.purpose] | need if need.purpose in joined else need
    used_ports, ports = set(reserved_ports), {}
    for need in joined.values():
        first = max(base, need.least)
        while used_ports & {*range(first, first + need.length)}:
            first += 1
        if first + need.length - 1 > HIGHEST:
            text = f"network.port_base: {base}: no {need.length} free ports in a row for {need.purpose} up to {HIGHEST}"
            raise InputError(text, hint="choose a lower port_base")
        ports[need.purpose] = first
        used_ports.update(range(first, first + need.length))
    return ports


def number_ports(purpose: str, first: int, numbers: Iterable[int]) -> dict[str, int]:
    """Return ports of a purpose by name: number 0 is side-channel, 1 is side-channel-1."""
    return {f"{purpose}-{number}" if number else purpose: first + number for number in numbers}


def find_port_collisions(used_ports: Sequence[UsedPort]) -> list[Problem]:
    """Return a problem for each port that two listen on at one node."""
    purposes: dict[tuple[str, int], str] = {}
    problems = []
    for used_port in used_ports:
        first_purpose = purposes.setdefault((used_port.node, used_port.port), used_port.what)
        if first_purpose != used_port.what:
            text = f"node {used_port.node}: port {used_port.port} is for {first_purpose} and for {used_port.what}"
            problems.append((text, "change one of them; ports that you do not set are allocated"))
    return problems
