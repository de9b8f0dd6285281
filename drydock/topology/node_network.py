"""The network interface of each node, and the variables that name it: one for each communicator. Pure.

Setting one variable does not set another. Sources: hosts_interfaces in templates/ (Gloo, NCCL, HCCL); kv_transfer in
templates/ (UCX).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from drydock.core.errors import InputError
from drydock.model.kv_transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.topology.findings import format_topology_finding
from drydock.topology.topology_records import Topology

_USUAL = ("GLOO_SOCKET_IFNAME",)
"""As entrypoints/decide/parallelism/hosts.py, Reach.interfaces."""


class Wires(NamedTuple):
    """Interfaces by node."""

    up: Mapping[str, tuple[str, ...]]
    """Node → its interfaces that are up."""
    chosen: str
    """The one that the user names; empty for the first of each node."""
    names: tuple[str, ...]
    """Variables that take it."""
    used: bool
    """Whether any server is reached by others."""

    @property
    def shown(self) -> str:
        """Return the interfaces in words."""
        return ", ".join(sorted({self.of(node) for node in self.up} - {""})) or "unknown"

    @property
    def because(self) -> str:
        """Say who chose it."""
        chosen = "network.interface of the file" if self.chosen else "the first that is up on each recorded host"
        return f"{chosen}, for {', '.join(self.names)}"

    def of(self, node: str) -> str:
        """Return a node's interface; empty if none is known."""
        return self.chosen or next(iter(self.up[node]), "")

    def variables(self, node: str) -> dict[str, str]:
        """Return the environment of a node."""
        return dict.fromkeys(self.names, self.of(node)) if self.of(node) else {}

    def findings(self, nodes: Iterable[str]) -> Iterator[str]:
        """Yield nodes whose interface was chosen among several."""
        for node in nodes:
            if not self.chosen and len(self.up[node]) > 1:
                yield format_topology_finding("TOPO-002", f"node {node} has the interfaces {', '.join(self.up[node])}")


def choose_interfaces(
    topology: Topology, variant: Variant, transfer: KvTransfer | None, up: Mapping[str, str]
) -> Wires:
    """Return the interfaces; `up` are those of each node, separated by spaces.

    Raises InputError for nodes on which the interface that the file names is not up.
    """
    chosen = topology.network.interface or ""
    interfaces = {node: tuple(text.split()) for node, text in up.items()}
    absent = [node for node, names in interfaces.items() if chosen and names and chosen not in names]
    if absent:
        where = (f"node {name}: no interface {chosen} is up, found {', '.join(interfaces[name])}" for name in absent)
        raise InputError(*where, hint="network.interface has the same name on every node; leave it out if names differ")
    threshold = variant.thresholds.get("hosts_interfaces")
    value = threshold.value if threshold else _USUAL
    variables = tuple(str(name) for name in value) if isinstance(value, tuple) else (str(value),)
    names = (*variables, *(transfer.interfaces if transfer else ()))
    return Wires(interfaces, chosen, names, bool(transfer) or any(group.nodes > 1 for group in topology.groups))
