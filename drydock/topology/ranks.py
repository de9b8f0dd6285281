"""What one rank is told: words for the entrypoint, environment and ports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from drydock.core.errors import InputError
from drydock.model.transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.run.access import HOST_FLAG
from drydock.topology import transfer
from drydock.topology.arguments import DEVICES, goal_words, is_ip, served_name, user_devices, user_number
from drydock.topology.groups import Placement, spans_clusters
from drydock.topology.network import Wires
from drydock.topology.ports import API, FLAGS, HIGHEST, MASTER, RAY_WORKERS, RPC, STATUS, Need, allocate, numbered
from drydock.topology.read import Read
from drydock.topology.records import Group, Node, Topology

RAY = "ray"
STALL = "--stall-seconds"
NVLINK_BETWEEN_NODES = "NCCL_MNNVL_ENABLE"
"""Whether NCCL uses NVLink between nodes. Source: NVIDIA, NCCL user guide, environment variables."""
TENSOR, DATA, LOCAL = "--tensor-parallel-size", "--data-parallel-size", "--data-parallel-size-local"


class Shape(NamedTuple):
    """What the first question says of a group: its parallelism, and how its ranks are started."""

    tensor: int
    data: int
    engines: int
    """Data-parallel engines on one node."""
    devices: int
    """Devices of one node that the group uses."""
    meets: bool
    """Whether the ranks meet at a port of the first one."""
    distributes: bool
    """Whether engines of several nodes answer to one API server."""
    ray: int
    """Port of Ray's head; 0 without Ray."""
    stall: int
    """Seconds without progress after which a server is not ready."""


def architecture(facts: Mapping[str, Any]) -> str:
    """Return the architecture of all of a node's devices; empty without devices, and if they differ."""
    found = {str(device["architecture"]) for device in facts["devices"]}
    return found.pop() if len(found) == 1 else ""


def devices(placement: Placement, rank: int, facts: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the numbers of the devices that a rank has on its node. Raises InputError."""
    if placement.devices:
        return placement.devices[rank]
    return user_devices(placement.group, [device["number"] for device in facts["devices"]])


def chosen_devices(placement: Placement, rank: int) -> tuple[str, ...]:
    """Return the words that name a rank's devices when its node's record shows all; a container has only its own."""
    return (DEVICES, ",".join(map(str, placement.devices[rank]))) if placement.devices else ()


def shape_of(found: Mapping[str, Any], count: int) -> Shape:
    """Return the shape of a group from the plan of its first rank."""
    said = {reason["setting"]: reason["value"] for reason in found["reasons"]}
    data = int(said.get(DATA, 1))
    ray = next((words[words.index("--port") + 1] for words in found["before"] if "--port" in words), 0)
    engines = int(said.get(LOCAL, data))
    meets = FLAGS[MASTER] in found["argv"]
    return Shape(
        int(said.get(TENSOR, 1)), data, engines, count, meets, FLAGS[RPC] in said, int(ray), int(said.get(STALL, 0))
    )


class Context(NamedTuple):
    """What every rank's words need."""

    read: Read
    model: str
    """Where the model is read here."""
    variant: Variant
    transfer: KvTransfer | None
    facts: Mapping[str, Any]
    """Node → its facts."""
    wires: Wires
    shapes: Mapping[str, Shape]
    """Group → shape."""
    slots: Mapping[int, Mapping[str, int]]
    """Slot of servers that share a node → purpose → first port."""
    placed: Sequence[Placement] = ()
    """Every server."""
    clusters: Mapping[str, str] = MappingProxyType({})
    """Node → its NVLink cluster and clique; empty for none."""

    @property
    def topology(self) -> Topology:
        """Return the topology as its file says it."""
        return self.read.topology


# --- words and environment ------------------------------------------------------------------------------------------


def words(context: Context, placement: Placement, rank: int) -> tuple[str, ...]:
    """Return the words after `serve MODEL`. What the user sets comes last, and nothing else is said of it."""
    group = placement.group
    own = {"--served-model-name": served_name(context.topology.model)}
    own |= {HOST_FLAG: address} if is_ip(address := placement.nodes[rank].address) else {}
    ports = context.slots.get(placement.slot, {})
    own |= {FLAGS[purpose]: str(ports[purpose]) for purpose in (API, STATUS) if purpose in ports}
    own |= goal_words(context.topology.goals, group)
    if len(placement.nodes) > 1:
        own |= _across(context, placement, rank)
    if context.transfer:
        own["--role"] = group.role
        own |= transfer.flags(context.transfer)
        own[transfer.CONFIG] = _connector(context, placement)
    kept = {name: value for name, value in own.items() if name not in _named(group.flags)}
    return (*(word for pair in kept.items() for word in pair), *group.flags)


def _connector(context: Context, placement: Placement) -> str:
    """Return the JSON of the connector; before the shapes are known, only what does not depend on them."""
    moved, role = context.transfer, placement.group.role
    if moved is None:
        return ""
    if not context.shapes:
        return transfer.config(moved.model_copy(update={"config": {}}), role, {}, 0)
    lease = transfer.lease(context.shapes[each.name].stall for each in context.topology.groups)
    return transfer.config(moved, role, _names(context, placement), lease)


def _named(flags: Iterable[str]) -> set[str]:
    return {word.partition("=")[0].replace("_", "-") for word in flags if word.startswith("-")}


def _across(context: Context, placement: Placement, rank: int) -> dict[str, str]:
    shape = context.shapes.get(placement.group.name)
    words = {
        "--nnodes": str(len(placement.nodes)),
        "--node-rank": str(rank),
        "--master-addr": placement.nodes[0].address,
    }
    if shape and shape.meets:
        words[FLAGS[MASTER]] = str(context.slots[placement.slot][MASTER])
    if shape and shape.distributes:
        words[FLAGS[RPC]] = str(context.slots[placement.slot][RPC])
    return words


def _names(context: Context, placement: Placement) -> dict[str, int | str]:
    """Return what stands for the names in the connector's data."""
    by_role = {role: [each for each in context.topology.groups if each.role == role] for role in ("prefill", "decode")}
    count = {role: sum(group.replicas for group in own) for role, own in by_role.items()}
    names: dict[str, int | str] = {"role": placement.group.role, "instance": _instance(context.topology, placement)}
    names |= {"prefills": count["prefill"], "decodes": count["decode"], "servers": sum(count.values())}
    for role, own in by_role.items():
        shape = context.shapes[own[0].name]
        names |= {f"{role}_tp": shape.tensor, f"{role}_dp": shape.data}
    decoding = (each.nodes for each in context.placed if each.group.role == "decode")
    names["decode_addresses"] = ";".join(",".join(node.address for node in nodes) for nodes in decoding)
    ports = {purpose: _own_port(context, placement, purpose) for purpose in _kv_ports(context)}
    return {**names, **ports}


def _instance(topology: Topology, placement: Placement) -> int:
    """Return a server's number: prefill first, in the order of the file."""
    before = 0
    for group in sorted(topology.groups, key=lambda each: each.role != "prefill"):
        if group == placement.group:
            break
        before += group.replicas
    return before + placement.number


def environment(context: Context, placement: Placement, node: Node) -> dict[str, str]:
    """Return the container's environment; what the user sets wins."""
    env: dict[str, str] = {}
    moved = context.transfer
    if moved or len(placement.nodes) > 1:
        env |= context.wires.variables(node.name)
        env |= {"VLLM_HOST_IP": node.address} if is_ip(node.address) else {}
    if spans_clusters(placement.nodes, context.clusters):
        env[NVLINK_BETWEEN_NODES] = "0"  # each node alone would take its own cluster for a link to the others
    if moved and context.shapes:
        env |= transfer.environment(moved, _names(context, placement))
        env |= dict.fromkeys(moved.address, node.address) if is_ip(node.address) else {}
        ports = context.slots[placement.slot]
        env |= {port.variable: str(ports[purpose]) for purpose, port in moved.ports.items() if port.variable}
    return env | {name: _text(value) for name, value in placement.group.env.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- ports ----------------------------------------------------------------------------------------------------------


def _kv_ports(context: Context) -> tuple[str, ...]:
    return tuple(context.transfer.ports) if context.transfer else ()


def allocated(context: Context) -> dict[int, dict[str, int]]:
    """Return the first port of each purpose for each slot, around the router's, Ray's and those that the user sets.

    Raises InputError.
    """
    topology = context.topology
    taken = [topology.router.port] if topology.router else []
    heads = [shape.ray for shape in context.shapes.values() if shape.ray]
    taken += [*heads, *RAY_WORKERS] if heads else []
    for group in topology.groups:
        for need in _needs(context, group):
            fixed = _fixed(context, group, need.purpose)
            if fixed + need.length - 1 > HIGHEST:
                text = f"{need.purpose} from {fixed}: {need.length} ports in a row end above {HIGHEST}"
                raise InputError(f"group {group.name}: {text}", hint="set a lower one, or none: the plan has ports")
            taken += [fixed] if fixed else []
    slots: dict[int, dict[str, int]] = {}
    for slot in sorted({placement.slot for placement in context.placed}):
        own = dict.fromkeys(placement.group.name for placement in context.placed if placement.slot == slot)
        needs = [need for group in topology.groups if group.name in own for need in _needs(context, group)]
        slots[slot] = allocate(needs, topology.network.port_base, taken)
        lengths = _lengths(needs)
        taken += [port for name, first in slots[slot].items() for port in range(first, first + lengths[name])]
    return slots


def _lengths(needs: Iterable[Need]) -> dict[str, int]:
    """Return purpose → ports in a row."""
    lengths: dict[str, int] = {}
    for need in needs:
        lengths[need.purpose] = max(need.length, lengths.get(need.purpose, 0))
    return lengths


def _needs(context: Context, group: Group) -> list[Need]:
    shape = context.shapes[group.name]
    needs = [Need(API), Need(STATUS)]
    needs += [Need(MASTER)] if shape.meets else []
    needs += [Need(RPC)] if shape.distributes else []
    for purpose, port in context.transfer.ports.items() if context.transfer else ():
        count = {"node": 1, "engine": shape.data, "device": shape.devices}[port.each]
        needs.append(Need(purpose, max(count, 1), port.least + port.least_each_device * shape.devices))
    return needs


def _fixed(context: Context, group: Group, purpose: str) -> int:
    """Return the port that the user sets for a purpose, or 0. Raises InputError if it is not a port."""
    port = context.transfer.ports.get(purpose) if context.transfer else None
    name = FLAGS.get(purpose) or (port.variable if port else None)
    return user_number(group, name) if name else 0


def _own_port(context: Context, placement: Placement, purpose: str) -> int:
    return _fixed(context, placement.group, purpose) or context.slots[placement.slot][purpose]


def _numbers(context: Context, need: Need, shape: Shape, rank: int) -> range:
    """Return which of the ports in a row a rank listens on: all, or those of its engines.

    Source: vLLM 0.32 kv_connector/v1/nixl/base_scheduler.py, VLLM_NIXL_SIDE_CHANNEL_PORT + data_parallel_index.
    """
    ports = context.transfer.ports if context.transfer else {}
    if shape.distributes and ports[need.purpose].each == "engine":
        return range(rank * shape.engines, (rank + 1) * shape.engines)
    return range(need.length)


def listens(context: Context, placement: Placement, rank: int, argv: Sequence[str]) -> dict[str, int]:
    """Return the ports that a rank listens on."""
    group, shape = placement.group, context.shapes[placement.group.name]
    answers = "--headless" not in argv and any(word.partition("=")[0] == FLAGS[API] for word in argv)
    found = {API: _own_port(context, placement, API)} if answers else {}
    found[STATUS] = _own_port(context, placement, STATUS)
    if rank == 0:
        found |= {RAY: shape.ray} if shape.ray else {}
        found |= {MASTER: _own_port(context, placement, MASTER)} if shape.meets else {}
        found |= {RPC: _own_port(context, placement, RPC)} if shape.distributes else {}
    for need in _needs(context, group):
        if need.purpose in _kv_ports(context):
            first = _own_port(context, placement, need.purpose)
            found |= numbered(need.purpose, first, _numbers(context, need, shape, rank))
    return found
