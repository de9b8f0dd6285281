"""Every port of a topology, allocated once. Pure.

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

    def __or__(self, other: Need) -> Need:
        """Return what covers both."""
        return Need(self.purpose, max(self.length, other.length), max(self.least, other.least))


class UsedPort(NamedTuple):
    """A port that a node listens on, and for what."""

    node: str
    port: int
    what: str


def allocate(needs: Iterable[Need], base: int, taken: Iterable[int]) -> dict[str, int]:
    """Return the first port of each purpose, in order from `base`, around those taken. Raises InputError."""
    joined: dict[str, Need] = {}
    for need in needs:
        joined[need.purpose] = joined[need.purpose] | need if need.purpose in joined else need
    used, found = set(taken), {}
    for need in joined.values():
        first = max(base, need.least)
        while used & {*range(first, first + need.length)}:
            first += 1
        if first + need.length - 1 > HIGHEST:
            text = f"network.port_base: {base}: no {need.length} free ports in a row for {need.purpose} up to {HIGHEST}"
            raise InputError(text, hint="choose a lower port_base")
        found[need.purpose] = first
        used.update(range(first, first + need.length))
    return found


def numbered(purpose: str, first: int, numbers: Iterable[int]) -> dict[str, int]:
    """Return ports of a purpose by name: number 0 is side-channel, 1 is side-channel-1."""
    return {f"{purpose}-{number}" if number else purpose: first + number for number in numbers}


def collisions(held: Sequence[UsedPort]) -> list[Problem]:
    """Return a problem for each port that two listen on at one node."""
    seen: dict[tuple[str, int], str] = {}
    problems = []
    for each in held:
        other = seen.setdefault((each.node, each.port), each.what)
        if other != each.what:
            text = f"node {each.node}: port {each.port} is for {other} and for {each.what}"
            problems.append((text, "change one of them; ports that you do not set are allocated"))
    return problems
