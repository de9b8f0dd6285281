"""What one rank is told: words for the entrypoint, environment and ports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from drydock.core.errors import InputError
from drydock.model.kv_transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.run.access import HOST_FLAG
from drydock.topology import kv_transfer_options
from drydock.topology.groups import Placement, spans_clusters
from drydock.topology.node_network import Wires
from drydock.topology.ports import (
    API,
    FLAGS,
    HIGHEST,
    MASTER,
    RAY_WORKERS,
    RPC,
    STATUS,
    Need,
    allocate_ports,
    number_ports,
)
from drydock.topology.topology_arguments import (
    DEVICES,
    choose_served_name,
    choose_user_devices,
    is_ip,
    list_goal_flags,
    read_user_port,
)
from drydock.topology.topology_file import Read
from drydock.topology.topology_records import Group, Node, Topology

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


def find_common_architecture(facts: Mapping[str, Any]) -> str:
    """Return the architecture of all of a node's devices; empty without devices, and if they differ."""
    architectures = {str(device["architecture"]) for device in facts["devices"]}
    return architectures.pop() if len(architectures) == 1 else ""


def list_group_devices(placement: Placement, rank: int, facts: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the numbers of the devices that a rank has on its node. Raises InputError."""
    if placement.devices:
        return placement.devices[rank]
    return choose_user_devices(placement.group, [device["number"] for device in facts["devices"]])


def chosen_devices(placement: Placement, rank: int) -> tuple[str, ...]:
    """Return the words that name a rank's devices when its node's record shows all; a container has only its own."""
    return (DEVICES, ",".join(map(str, placement.devices[rank]))) if placement.devices else ()


def parse_shape(rank_plan: Mapping[str, Any], count: int) -> Shape:
    """Return the shape of a group from the plan of its first rank."""
    settings = {reason["setting"]: reason["value"] for reason in rank_plan["reasons"]}
    data = int(settings.get(DATA, 1))
    ray = next((words[words.index("--port") + 1] for words in rank_plan["before"] if "--port" in words), 0)
    engines = int(settings.get(LOCAL, data))
    meets = FLAGS[MASTER] in rank_plan["argv"]
    return Shape(
        int(settings.get(TENSOR, 1)),
        data,
        engines,
        count,
        meets,
        FLAGS[RPC] in settings,
        int(ray),
        int(settings.get(STALL, 0)),
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


def list_rank_words(context: Context, placement: Placement, rank: int) -> tuple[str, ...]:
    """Return the words after `serve MODEL`. What the user sets comes last, and nothing else is said of it."""
    group = placement.group
    options = {"--served-model-name": choose_served_name(context.topology.model)}
    options |= {HOST_FLAG: address} if is_ip(address := placement.nodes[rank].address) else {}
    ports = context.slots.get(placement.slot, {})
    options |= {FLAGS[purpose]: str(ports[purpose]) for purpose in (API, STATUS) if purpose in ports}
    options |= list_goal_flags(context.topology.goals, group)
    if len(placement.nodes) > 1:
        options |= _list_node_words(context, placement, rank)
    if context.transfer:
        options["--role"] = group.role
        options |= kv_transfer_options.list_transfer_flags(context.transfer)
        options[kv_transfer_options.CONFIG] = _connector(context, placement)
    default_options = {name: value for name, value in options.items() if name not in _list_flag_names(group.flags)}
    return (*(word for pair in default_options.items() for word in pair), *group.flags)


def _connector(context: Context, placement: Placement) -> str:
    """Return the JSON of the connector; before the shapes are known, only what does not depend on them."""
    moved, role = context.transfer, placement.group.role
    if moved is None:
        return ""
    if not context.shapes:
        return kv_transfer_options.format_transfer_config(moved.model_copy(update={"config": {}}), role, {}, 0)
    lease = kv_transfer_options.compute_lease(context.shapes[each.name].stall for each in context.topology.groups)
    return kv_transfer_options.format_transfer_config(moved, role, _list_connector_names(context, placement), lease)


def _list_flag_names(flags: Iterable[str]) -> set[str]:
    return {word.partition("=")[0].replace("_", "-") for word in flags if word.startswith("-")}


def _list_node_words(context: Context, placement: Placement, rank: int) -> dict[str, str]:
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


def _list_connector_names(context: Context, placement: Placement) -> dict[str, int | str]:
    """Return what stands for the names in the connector's data."""
    by_role = {role: [item for item in context.topology.groups if item.role == role] for role in ("prefill", "decode")}
    count = {role: sum(group.replicas for group in groups) for role, groups in by_role.items()}
    names: dict[str, int | str] = {
        "role": placement.group.role,
        "instance": _number_server(context.topology, placement),
    }
    names |= {"prefills": count["prefill"], "decodes": count["decode"], "servers": sum(count.values())}
    for role, groups in by_role.items():
        shape = context.shapes[groups[0].name]
        names |= {f"{role}_tp": shape.tensor, f"{role}_dp": shape.data}
    decoding = (item.nodes for item in context.placed if item.group.role == "decode")
    names["decode_addresses"] = ";".join(",".join(node.address for node in nodes) for nodes in decoding)
    ports = {purpose: _choose_port(context, placement, purpose) for purpose in _list_kv_ports(context)}
    return {**names, **ports}


def _number_server(topology: Topology, placement: Placement) -> int:
    """Return a server's number: prefill first, in the order of the file."""
    before = 0
    for group in sorted(topology.groups, key=lambda group: group.role != "prefill"):
        if group == placement.group:
            break
        before += group.replicas
    return before + placement.number


def make_rank_environment(context: Context, placement: Placement, node: Node) -> dict[str, str]:
    """Return the container's environment; what the user sets wins."""
    env: dict[str, str] = {}
    moved = context.transfer
    if moved or len(placement.nodes) > 1:
        env |= context.wires.variables(node.name)
        env |= {"VLLM_HOST_IP": node.address} if is_ip(node.address) else {}
    if spans_clusters(placement.nodes, context.clusters):
        env[NVLINK_BETWEEN_NODES] = "0"  # each node alone would take its own cluster for a link to the others
    if moved and context.shapes:
        env |= kv_transfer_options.make_transfer_environment(moved, _list_connector_names(context, placement))
        env |= dict.fromkeys(moved.address, node.address) if is_ip(node.address) else {}
        ports = context.slots[placement.slot]
        env |= {port.variable: str(ports[purpose]) for purpose, port in moved.ports.items() if port.variable}
    return env | {name: _format_env_value(value) for name, value in placement.group.env.items()}


def _format_env_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- ports ----------------------------------------------------------------------------------------------------------


def _list_kv_ports(context: Context) -> tuple[str, ...]:
    return tuple(context.transfer.ports) if context.transfer else ()


def allocate_topology_ports(context: Context) -> dict[int, dict[str, int]]:
    """Return the first port of each purpose for each slot, around the router's, Ray's and those that the user sets.

    Raises InputError.
    """
    topology = context.topology
    reserved_ports = [topology.router.port] if topology.router else []
    heads = [shape.ray for shape in context.shapes.values() if shape.ray]
    reserved_ports += [*heads, *RAY_WORKERS] if heads else []
    for group in topology.groups:
        for need in _list_port_needs(context, group):
            fixed = _find_user_port(context, group, need.purpose)
            if fixed + need.length - 1 > HIGHEST:
                text = f"{need.purpose} from {fixed}: {need.length} ports in a row end above {HIGHEST}"
                raise InputError(f"group {group.name}: {text}", hint="set a lower one, or none: the plan has ports")
            reserved_ports += [fixed] if fixed else []
    slots: dict[int, dict[str, int]] = {}
    for slot in sorted({placement.slot for placement in context.placed}):
        own = dict.fromkeys(placement.group.name for placement in context.placed if placement.slot == slot)
        needs = [need for group in topology.groups if group.name in own for need in _list_port_needs(context, group)]
        slots[slot] = allocate_ports(needs, topology.network.port_base, reserved_ports)
        lengths = _lengths(needs)
        reserved_ports += [port for name, first in slots[slot].items() for port in range(first, first + lengths[name])]
    return slots


def _lengths(needs: Iterable[Need]) -> dict[str, int]:
    """Return purpose → ports in a row."""
    lengths: dict[str, int] = {}
    for need in needs:
        lengths[need.purpose] = max(need.length, lengths.get(need.purpose, 0))
    return lengths


def _list_port_needs(context: Context, group: Group) -> list[Need]:
    shape = context.shapes[group.name]
    needs = [Need(API), Need(STATUS)]
    needs += [Need(MASTER)] if shape.meets else []
    needs += [Need(RPC)] if shape.distributes else []
    for purpose, port in context.transfer.ports.items() if context.transfer else ():
        count = {"node": 1, "engine": shape.data, "device": shape.devices}[port.each]
        needs.append(Need(purpose, max(count, 1), port.least + port.least_each_device * shape.devices))
    return needs


def _find_user_port(context: Context, group: Group, purpose: str) -> int:
    """Return the port that the user sets for a purpose, or 0. Raises InputError if it is not a port."""
    port = context.transfer.ports.get(purpose) if context.transfer else None
    name = FLAGS.get(purpose) or (port.variable if port else None)
    return read_user_port(group, name) if name else 0


def _choose_port(context: Context, placement: Placement, purpose: str) -> int:
    return _find_user_port(context, placement.group, purpose) or context.slots[placement.slot][purpose]


def _list_port_numbers(context: Context, need: Need, shape: Shape, rank: int) -> range:
    """Return which of the ports in a row a rank listens on: all, or those of its engines.

    Source: vLLM 0.32 kv_connector/v1/nixl/base_scheduler.py, VLLM_NIXL_SIDE_CHANNEL_PORT + data_parallel_index.
    """
    ports = context.transfer.ports if context.transfer else {}
    if shape.distributes and ports[need.purpose].each == "engine":
        return range(rank * shape.engines, (rank + 1) * shape.engines)
    return range(need.length)


def list_rank_ports(context: Context, placement: Placement, rank: int, argv: Sequence[str]) -> dict[str, int]:
    """Return the ports that a rank listens on."""
    group, shape = placement.group, context.shapes[placement.group.name]
    answers = "--headless" not in argv and any(word.partition("=")[0] == FLAGS[API] for word in argv)
    ports = {API: _choose_port(context, placement, API)} if answers else {}
    ports[STATUS] = _choose_port(context, placement, STATUS)
    if rank == 0:
        ports |= {RAY: shape.ray} if shape.ray else {}
        ports |= {MASTER: _choose_port(context, placement, MASTER)} if shape.meets else {}
        ports |= {RPC: _choose_port(context, placement, RPC)} if shape.distributes else {}
    for need in _list_port_needs(context, group):
        if need.purpose in _list_kv_ports(context):
            first = _choose_port(context, placement, need.purpose)
            ports |= number_ports(need.purpose, first, _list_port_numbers(context, need, shape, rank))
    return ports
