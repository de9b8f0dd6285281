"""Which nodes form a replica, and why not the others. Pure.

Ranks of one server compute in step: the slowest decides, and collectives between unlike cards, drivers or firmware hang
or fail. So all nodes of a replica are alike. Sources: vLLM docs, parallelism and scaling, multi-node (the same
environment on every node); vllm-ascend docs, multi-node (the same CANN and driver).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from drydock.config.validation import Problem, combine_problems
from drydock.model.names import UNSEEN
from drydock.topology.findings import format_topology_finding
from drydock.topology.plan_model import Because
from drydock.topology.topology_records import Group, Node, Topology
from entrypoints.core.parse import format_id_list
from entrypoints.core.text import format_count

Facts = Mapping[str, Any]
"""What `facts` prints: entrypoints/core/records.py, Facts."""
Traits = Mapping[str, str]
"""What nodes of one replica have in common: name → value."""

_NOT_COMPARED = frozenset({"tool", "compute_capability_highest"})
"""Versions that no rank runs with: the vendor's command line tool, and what follows from the cards."""
_GIB = 1 << 30


class Placement(NamedTuple):
    """The nodes of one replica."""

    group: Group
    number: int
    nodes: tuple[Node, ...]
    because: Because
    devices: tuple[tuple[int, ...], ...] = ()
    """Numbers of its devices on each node, if the group says which or how many; else it has the nodes for itself."""
    slot: int = 0
    """Which of the servers that share a node it is, from 0. Each slot has ports of its own."""


def collect_node_traits(facts: Facts, super_pod: str = "") -> Traits:
    """Return what must be the same on every node of a replica."""
    cards = [_describe_card(device) for device in facts["devices"]]
    hardware = {"accelerator": facts["accelerator"], "architecture": facts["processor"]["architecture"]}
    if cards:
        hardware["devices"] = str(len(cards))
        hardware["card"] = " and ".join(sorted(set(cards)))
    else:
        hardware["processor"] = facts["processor"]["model"]
        hardware["CPUs"] = str(len(facts["cpus"]))
    versions = {name: str(value) for name, value in sorted(facts["versions"].items()) if name not in _NOT_COMPARED}
    all_traits = {**hardware, **versions, **({"super pod": super_pod} if super_pod else {})}
    return {name: UNSEEN.sub("\ufffd", text) for name, text in all_traits.items()}


def _describe_card(device: Mapping[str, Any]) -> str:
    memory = f", {device['memory_total'] / _GIB:.0f} GiB" if device["memory_total"] else ""
    return f"{device['name']} ({device['architecture']}{memory})"


def nvlink_cluster(facts: Facts) -> str:
    """Return the cluster and clique of a node's GPUs, which reach those of the other nodes in it; empty for none."""
    return UNSEEN.sub("\ufffd", str(facts["kernel"].get("nvlink_cluster", "")))


def is_joined(nodes: Sequence[Node], clusters: Mapping[str, str]) -> bool:
    """Return whether NVLink joins all nodes: their GPUs are in one cluster and clique."""
    node_clusters = {clusters.get(node.name, "") for node in nodes}
    return len(node_clusters) == 1 and "" not in node_clusters


def spans_clusters(nodes: Sequence[Node], clusters: Mapping[str, str]) -> bool:
    """Return whether a replica's nodes have NVLink clusters, but not the same one."""
    return len({clusters.get(node.name, "") for node in nodes}) > 1


def compare_traits(first: Traits, second: Traits) -> str:
    """Return how the second node differs from the first, such as `driver 535.1 instead of 580.2`; empty if alike."""
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return ", ".join(f"{name} {second.get(name, 'unknown')} instead of {first.get(name, 'unknown')}" for name in names)


class _Room:
    """What the nodes still have for further servers."""

    def __init__(self, devices: Mapping[str, Sequence[int]]) -> None:
        self._free = {node: [*numbers] for node, numbers in devices.items()}
        self._slots: dict[str, set[int]] = {node: set() for node in devices}

    def fits(self, group: Group, node: str) -> bool:
        """Return whether a node has what one rank of a group takes."""
        if group.devices is None:
            return not self._slots[node]
        if isinstance(group.devices, int):
            return len(self._free[node]) >= group.devices
        return {*group.devices} <= {*self._free[node]}

    def take(self, group: Group, nodes: Sequence[Node]) -> tuple[tuple[tuple[int, ...], ...], int]:
        """Take the devices of a server; return those of each node, and the slot."""
        taken = tuple(self._numbers(group, node.name) for node in nodes)
        used = {slot for node in nodes for slot in self._slots[node.name]}
        slot = next(number for number in range(len(used) + 1) if number not in used)
        for node, numbers in zip(nodes, taken, strict=True):
            self._slots[node.name].add(slot)
            self._free[node.name] = [number for number in self._free[node.name] if number not in numbers]
        return () if group.devices is None else taken, slot

    def _numbers(self, group: Group, node: str) -> tuple[int, ...]:
        if group.devices is None:
            return tuple(self._free[node])
        return tuple(self._free[node][: group.devices]) if isinstance(group.devices, int) else group.devices


def place_replicas(
    topology: Topology,
    node_traits: Mapping[str, Traits],
    devices: Mapping[str, Sequence[int]],
    clusters: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Placement, ...]:
    """Choose nodes for every replica: first for the groups that name theirs, then in the file's order.

    `devices` are the numbers of each node's devices. Of nodes that are alike, those of one NVLink cluster and clique
    form a replica, if there are enough: `clusters` has that of each node. Raises InputError with each group for which
    nodes are missing or unlike.
    """
    room = _Room(devices)
    problems: list[Problem] = []
    placed: dict[str, list[Placement]] = {}
    for group in sorted(topology.groups, key=lambda item: not item.on):
        placed[group.name] = []
        for number in range(group.replicas):
            listed_nodes = [node for node in topology.nodes if not group.on or node.name in group.on]
            allowed = [node for node in listed_nodes if room.fits(group, node.name)]
            nodes = _choose_alike_nodes(allowed, group.nodes, node_traits, clusters)
            if not nodes:
                problems.append(_explain_missing_nodes(group, number, allowed, node_traits))
                break
            because = _explain_node_choice(nodes, allowed, node_traits)
            if group.nodes > 1 and is_joined(nodes, clusters):
                because = because.model_copy(update={"because": f"{because.because}; NVLink joins them"})
            taken, slot = room.take(group, nodes)
            placed[group.name].append(Placement(group, number, nodes, because, taken, slot))
    if problems:
        raise combine_problems(problems)
    return tuple(item for group in topology.groups for item in placed[group.name])


def find_idle(placed: Sequence[Placement], devices: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return the devices that no server has, of the nodes on which servers have some."""
    used: dict[str, set[int]] = {}
    for placement in placed:
        for node, numbers in zip(placement.nodes, placement.devices, strict=False):
            used.setdefault(node.name, set()).update(numbers)
    idle = {node: [number for number in devices[node] if number not in numbers] for node, numbers in used.items()}
    return {node: numbers for node, numbers in idle.items() if numbers}


def _choose_alike_nodes(
    allowed: Sequence[Node], count: int, node_traits: Mapping[str, Traits], clusters: Mapping[str, str]
) -> tuple[Node, ...]:
    """Return the first nodes that are alike, best in one NVLink cluster; none if there are too few."""
    alike = [[node for node in allowed if node_traits[node.name] == node_traits[first.name]] for first in allowed]
    joined = [
        [node for node in same if clusters.get(node.name) == clusters.get(first.name)]
        for first, same in zip(allowed, alike, strict=True)
    ]
    return next((tuple(nodes[:count]) for nodes in (*joined, *alike) if len(nodes) >= count), ())


def _explain_missing_nodes(
    group: Group, number: int, allowed: Sequence[Node], node_traits: Mapping[str, Traits]
) -> Problem:
    where = f"group {group.name}, replica {number}: found"
    if len(allowed) < group.nodes:
        node_names = ", ".join(node.name for node in allowed) or "none"
        if group.devices is None:
            what, hint = "free nodes", "add nodes, reduce replicas or nodes, or let servers share a node: `devices`"
        else:
            what, hint = f"nodes with {_devices_text(group)} free", "add nodes, or reduce replicas, nodes or devices"
        return f"{where} {len(allowed)} {what} ({node_names}), expected {group.nodes}", hint
    first = allowed[0]
    unlike = [f"{node.name}: {_describe_unlike_node(first, node, node_traits)}" for node in allowed[1:]]
    text = f"{where} no {group.nodes} nodes that are alike; compared with {first.name}: {'; '.join(unlike)}"
    return text, "make the nodes alike, or use one node for each replica"


def _devices_text(group: Group) -> str:
    if isinstance(group.devices, int):
        return format_count(group.devices, "device")
    return f"devices {format_id_list(group.devices or ())}"


def _describe_unlike_node(first: Node, node: Node, node_traits: Mapping[str, Traits]) -> str:
    return compare_traits(node_traits[first.name], node_traits[node.name]) or "alike"


def _explain_node_choice(nodes: Sequence[Node], allowed: Sequence[Node], node_traits: Mapping[str, Traits]) -> Because:
    """Say what the nodes have in common, and how those that were free differ."""
    first = node_traits[nodes[0].name]
    common = ", ".join(f"{name} {value}" for name, value in first.items())
    alike = "one node" if len(nodes) == 1 else f"{len(nodes)} nodes that are alike"
    differing_nodes = ((node, compare_traits(first, node_traits[node.name])) for node in allowed if node not in nodes)
    return Because(
        setting="nodes",
        value=", ".join(node.name for node in nodes),
        because=f"{alike}: {common}",
        instead=tuple(f"{node.name}: {text}" for node, text in differing_nodes if text),
    )


def check_placements(
    topology: Topology,
    placed: Sequence[Placement],
    node_traits: Mapping[str, Traits],
    devices: Mapping[str, Sequence[int]],
    clusters: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Yield nodes and devices that run nothing, replicas over several NVLink clusters, and replicas that differ."""
    used_names = {node.name for placement in placed for node in placement.nodes}
    for name, numbers in find_idle(placed, devices).items():
        kind = "device" if len(numbers) == 1 else "devices"
        yield format_topology_finding("TOPO-001", f"a part of node {name} ({kind} {format_id_list(tuple(numbers))})")
    router = topology.router.node if topology.router else ""
    for node in topology.nodes:
        if node.name not in used_names and node.name != router:
            yield format_topology_finding("TOPO-001", f"node {node.name}")
    for replica in placed:
        if spans_clusters(replica.nodes, clusters):
            where = ", ".join(f"{node.name} in {clusters.get(node.name) or 'none'}" for node in replica.nodes)
            yield format_topology_finding("TOPO-035", f"group {replica.group.name}, replica {replica.number} ({where})")
    for group in topology.groups:
        replicas = [placement for placement in placed if placement.group == group]
        first = node_traits[replicas[0].nodes[0].name]
        for other in replicas[1:]:
            if text := compare_traits(first, node_traits[other.nodes[0].name]):
                yield format_topology_finding("TOPO-007", f"{group.name} differ: replica {other.number} has {text}")
