"""A topology → its plan: nodes of each replica, ports, and each rank's command with reasons.

Each command is decided by the image's entrypoint from the recorded host of its node, as on one host. A first question for
each group tells the parallelism, on which ports and connectors depend; a second one for each rank has all words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from drydock.config.validation import failure
from drydock.core.errors import InputError
from drydock.model.transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.topology import groups, ratio, router, transfer
from drydock.topology.asked import Ask, Asked
from drydock.topology.findings import finding
from drydock.topology.groups import Placement, Traits
from drydock.topology.network import Wires, wires
from drydock.topology.planned import Because, Rank, Replica, TopologyPlan
from drydock.topology.ports import API, FLAGS, HIGHEST, MASTER, RPC, STATUS, Held, Need, allocate, collisions, numbered
from drydock.topology.read import Read
from drydock.topology.records import Goals, Group, Node, Topology
from drydock.topology.words import goal_words, is_ip, served_name, user_number

RAY = "ray"
TENSOR, DATA, LOCAL = "--tensor-parallel-size", "--data-parallel-size", "--data-parallel-size-local"


class Shape(NamedTuple):
    """What the first question says of a group: its parallelism, and how its ranks are started."""

    tensor: int
    data: int
    engines: int
    """Data-parallel engines on one node."""
    devices: int
    """Devices of one node."""
    meets: bool
    """Whether the ranks meet at a port of the first one."""
    distributes: bool
    """Whether engines of several nodes answer to one API server."""
    ray: int
    """Port of Ray's head; 0 without Ray."""


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
    ports: Mapping[str, int]
    """Purpose → first port."""

    @property
    def topology(self) -> Topology:
        return self.read.topology


def plan(read: Read, variant: Variant, image: str, ask: Ask, model: str = "") -> TopologyPlan:
    """Plan a topology; `model` is the folder where the model is read here, if not that of the nodes.

    Raises InputError for what cannot be planned, and HostError if the entrypoint fails.
    """
    topology = read.topology
    moved = transfer.checked(variant, topology.groups)
    facts = _facts(read, variant, ask)
    known = {name: groups.traits(found, _super_pod(found)) for name, found in facts.items()}
    placed = groups.place(topology, known)
    wired = wires(topology, variant, moved, {name: found["kernel"].get("interfaces", "") for name, found in facts.items()})
    context = Context(read, model or topology.model, variant, moved, facts, wired, {}, {})
    context = context._replace(shapes=_shapes(context, placed, ask))
    context = context._replace(ports=_allocate(context))
    replicas, cached = _replicas(context, placed, ask)
    _check_ports(topology, replicas)
    return TopologyPlan(
        model=topology.model,
        image=image,
        accelerator=variant.accelerator,
        variant=variant.id,
        replicas=replicas,
        router=router.plan(topology, replicas, moved, variant) if topology.router else None,
        reasons=(*_reasons(context),),
        findings=(*dict.fromkeys((*_findings(context, placed, known), *cached)),),
    )


# --- questions ------------------------------------------------------------------------------------------------------


def _facts(read: Read, variant: Variant, ask: Ask) -> dict[str, Any]:
    """Return the facts of each node; nodes with one recorded host are read once. Raises InputError."""
    paths = sorted(set(read.hosts.values()))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(paths, pool.map(ask.facts, paths), strict=True))
    if variant.run.devices or variant.run.gpus:
        lacking = [node for node, path in read.hosts.items() if not found[path]["devices"]]
        if lacking:
            where = (f"node {node}: no device of {variant.title} in {read.hosts[node].name}" for node in lacking)
            raise InputError(*where, hint=f"record the host with an image for {variant.accelerator}, or change target")
    return {node: found[path] for node, path in read.hosts.items()}


def _super_pod(facts: Mapping[str, Any]) -> str:
    """Return the super pod of a node; empty if its facts do not tell."""
    return str(facts["kernel"].get("super_pod", ""))


def _shapes(context: Context, placed: Sequence[Placement], ask: Ask) -> dict[str, Shape]:
    """Ask for the first rank of each group, without what depends on the answer."""
    first = [each for each in placed if each.number == 0]
    bare = context._replace(transfer=None)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        plans = list(pool.map(lambda each: ask.plan(_question(bare, each, 0)), first))
    _check_model(plans)
    facts = [context.facts[each.nodes[0].name] for each in first]
    return {each.group.name: _shape(*of) for each, of in zip(first, zip(plans, facts, strict=True), strict=True)}


def _check_model(plans: Iterable[Mapping[str, Any]]) -> None:
    """Raise InputError if the model could not be read: its plan would be for one device."""
    unknown = [each["found"] for found in plans for each in found["findings"] if each["id"] == _UNKNOWN_MODEL]
    if unknown:
        hint = "--model FOLDER reads it here; of a hub id, config.json and model.safetensors.index.json are enough"
        raise InputError(f"the model is not on this machine, and the hub does not answer: {unknown[0]}", hint=hint)


def _shape(found: Mapping[str, Any], facts: Mapping[str, Any]) -> Shape:
    said = {reason["setting"]: reason["value"] for reason in found["reasons"]}
    data = int(said.get(DATA, 1))
    ray = next((words[words.index("--port") + 1] for words in found["before"] if "--port" in words), 0)
    engines = int(said.get(LOCAL, data))
    meets = FLAGS[MASTER] in found["argv"]
    return Shape(int(said.get(TENSOR, 1)), data, engines, len(facts["devices"]), meets, FLAGS[RPC] in said, int(ray))


def _question(context: Context, placement: Placement, rank: int) -> Asked:
    node = placement.nodes[rank]
    return Asked(
        context.read.hosts[node.name],
        context.model,
        _words(context, placement, rank),
        _environment(context, placement, node),
    )


# --- words and environment ------------------------------------------------------------------------------------------


def _words(context: Context, placement: Placement, rank: int) -> tuple[str, ...]:
    """Return the words after `serve MODEL`. What the user sets comes last, and nothing is said beside it."""
    group = placement.group
    own = {"--served-model-name": served_name(context.topology.model)}
    own |= {FLAGS[purpose]: str(context.ports[purpose]) for purpose in (API, STATUS) if purpose in context.ports}
    own |= goal_words(context.topology.goals, group)
    if len(placement.nodes) > 1:
        own |= _across(context, placement, rank)
    if context.transfer:
        own |= transfer.flags(context.transfer)
        own[transfer.CONFIG] = transfer.config(context.transfer, group.role, _names(context, placement))
    kept = {name: value for name, value in own.items() if name not in _named(group.flags)}
    return (*(word for pair in kept.items() for word in pair), *group.flags)


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
        words[FLAGS[MASTER]] = str(context.ports[MASTER])
    if shape and shape.distributes:
        words[FLAGS[RPC]] = str(context.ports[RPC])
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
    ports = {purpose: _own_port(context, placement.group, purpose) for purpose in _kv_ports(context)}
    return {**names, **ports}


def _instance(topology: Topology, placement: Placement) -> int:
    """Return a server's number: prefill first, in the order of the file."""
    before = 0
    for group in sorted(topology.groups, key=lambda each: each.role != "prefill"):
        if group == placement.group:
            break
        before += group.replicas
    return before + placement.number


def _environment(context: Context, placement: Placement, node: Node) -> dict[str, str]:
    """Return the container's environment; what the user sets wins."""
    env: dict[str, str] = {}
    moved = context.transfer
    if moved or len(placement.nodes) > 1:
        env |= context.wires.variables(node.name)
        env |= {"VLLM_HOST_IP": node.address} if is_ip(node.address) else {}
    if moved:
        env |= transfer.environment(moved, _names(context, placement))
        env |= dict.fromkeys(moved.address, node.address) if is_ip(node.address) else {}
        env |= {port.variable: str(context.ports[purpose]) for purpose, port in moved.ports.items() if port.variable}
    return env | {name: _text(value) for name, value in placement.group.env.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- ports ----------------------------------------------------------------------------------------------------------


def _kv_ports(context: Context) -> tuple[str, ...]:
    return tuple(context.transfer.ports) if context.transfer else ()


def _allocate(context: Context) -> dict[str, int]:
    topology = context.topology
    taken = [topology.router.port] if topology.router else []
    taken += [shape.ray for shape in context.shapes.values()]
    for group in topology.groups:
        needs = _needs(context, group)
        taken += [fixed for need in needs if (fixed := _fixed(context, group, need.purpose))]
    every = [need for group in topology.groups for need in _needs(context, group)]
    return allocate(every, topology.network.port_base, taken)


def _needs(context: Context, group: Group) -> list[Need]:
    shape = context.shapes[group.name]
    needs = [Need(API), Need(STATUS)]
    needs += [Need(MASTER)] if shape.meets else []
    needs += [Need(RPC)] if shape.distributes else []
    for purpose, port in context.transfer.ports.items() if context.transfer else ():
        count = {"node": 1, "engine": shape.engines, "device": shape.devices}[port.each]
        needs.append(Need(purpose, max(count, 1), port.least + port.least_each_device * shape.devices))
    return needs


def _fixed(context: Context, group: Group, purpose: str) -> int:
    """Return the port that the user sets for a purpose; 0 if none. Raises InputError for what is no port."""
    port = context.transfer.ports.get(purpose) if context.transfer else None
    name = FLAGS.get(purpose) or (port.variable if port else None)
    found = user_number(group, name) if name else 0
    if found > HIGHEST:
        raise InputError(f"group {group.name}: {name} {found}: expected a port up to {HIGHEST}")
    return found


def _own_port(context: Context, group: Group, purpose: str) -> int:
    return _fixed(context, group, purpose) or context.ports[purpose]


def _listens(context: Context, placement: Placement, rank: int, argv: Sequence[str]) -> dict[str, int]:
    """Return the ports that a rank listens on."""
    group, shape = placement.group, context.shapes[placement.group.name]
    answers = "--headless" not in argv and any(word.partition("=")[0] == FLAGS[API] for word in argv)
    found = {API: _own_port(context, group, API)} if answers else {}
    found[STATUS] = _own_port(context, group, STATUS)
    if rank == 0:
        found |= {RAY: shape.ray} if shape.ray else {}
        found |= {MASTER: _own_port(context, group, MASTER)} if shape.meets else {}
        found |= {RPC: _own_port(context, group, RPC)} if shape.distributes else {}
    for need in _needs(context, group):
        if need.purpose in _kv_ports(context):
            found |= numbered(need.purpose, _own_port(context, group, need.purpose), need.length)
    return found


def _check_ports(topology: Topology, replicas: Iterable[Replica]) -> None:
    """Raise InputError if two listen on one port of a node."""
    held = [Held(topology.router.node, topology.router.port, "the router")] if topology.router else []
    for replica in replicas:
        for rank in replica.ranks:
            held += [Held(rank.node, port, f"{purpose} of {replica.group}") for purpose, port in rank.ports.items()]
    if problems := collisions(held):
        raise failure(problems)


# --- ranks ----------------------------------------------------------------------------------------------------------


def _replicas(context: Context, placed: Sequence[Placement], ask: Ask) -> tuple[tuple[Replica, ...], list[str]]:
    """Return the replicas, and what needs attention in their plans."""
    each_rank = [(placement, rank) for placement in placed for rank in range(len(placement.nodes))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda of: ask.plan(_question(context, *of)), each_rank))
    plans = {(id(placement), rank): each for (placement, rank), each in zip(each_rank, found, strict=True)}
    replicas = []
    for placement in placed:
        own = [plans[id(placement), rank] for rank in range(len(placement.nodes))]
        ranks = tuple(_rank(context, placement, rank, each) for rank, each in enumerate(own))
        reasons = (placement.because, *_decisions(context, own[0]))
        replicas.append(
            Replica(group=placement.group.name, role=placement.group.role, number=placement.number, ranks=ranks, reasons=reasons)
        )
    return tuple(replicas), [*_wrong(placed, plans), *_cache_keys(placed, plans)]


def _rank(context: Context, placement: Placement, rank: int, found: Mapping[str, Any]) -> Rank:
    node = placement.nodes[rank]
    argv = tuple(_on_the_node(context, word) for word in found["argv"])
    return Rank(
        node=node.name,
        address=node.address,
        rank=rank,
        devices=tuple(device["number"] for device in context.facts[node.name]["devices"]),
        argv=argv,
        words=("serve", context.topology.model, *_words(context, placement, rank)),
        env=dict(sorted(_environment(context, placement, node).items())),
        ports=_listens(context, placement, rank, argv),
        before=tuple(tuple(words) for words in found["before"]),
    )


def _on_the_node(context: Context, text: str) -> str:
    """Write the model as the nodes know it."""
    return text.replace(context.model, context.topology.model)


def _decisions(context: Context, found: Mapping[str, Any]) -> list[Because]:
    return [
        Because(
            setting=reason["setting"],
            value=_on_the_node(context, reason["value"]),
            because=_on_the_node(context, reason["because"]),
            instead=tuple(reason["instead"]),
        )
        for reason in found["reasons"]
        if reason["origin"] == "decision"
    ]


# --- reasons and findings -------------------------------------------------------------------------------------------


def _reasons(context: Context) -> Iterable[Because]:
    topology, moved = context.topology, context.transfer
    if moved:
        yield Because(setting="connector", value=moved.connector or "", because=f"{moved.because} Source: {moved.source}")
        count = f"{ratio.nodes_of(topology.groups, 'prefill')}:{ratio.nodes_of(topology.groups, 'decode')}"
        yield Because(setting="prefill:decode", value=count, because=_ratio(topology.goals))
    if context.wires.used:
        yield Because(setting="interface", value=context.wires.shown, because=context.wires.because)
    ports = ", ".join(f"{purpose} {port}" for purpose, port in context.ports.items())
    same = "the same on every node, as some of them are in the key of vLLM's compile cache"
    yield Because(setting="ports", value=ports, because=f"from network.port_base {topology.network.port_base}; {same}")


def _ratio(goals: Goals) -> str:
    wanted = ratio.wanted(goals)
    if wanted is None:
        return "nodes as the file says; goals with input and output lengths would be compared"
    return f"nodes as the file says; goals suggest {wanted:.2g} nodes for prefill to one for decode"


def _findings(context: Context, placed: Sequence[Placement], known: Mapping[str, Traits]) -> Iterable[str]:
    topology = context.topology
    yield from groups.findings(topology, placed, known)
    yield from ratio.findings(topology.goals, topology.groups)
    if context.transfer:
        yield from transfer.findings(context.transfer, context.variant)
    used = [node for each in placed if context.transfer or len(each.nodes) > 1 for node in each.nodes]
    yield from (finding("TOPO-008", f"node {node.name}: {node.address}") for node in used if not is_ip(node.address))
    yield from context.wires.findings(node.name for node in used)


def _wrong(placed: Sequence[Placement], plans: Mapping[tuple[int, int], Any]) -> Iterable[str]:
    """Yield what the plans of the ranks warn of, each once with all its nodes."""
    nodes: dict[str, list[str]] = {}
    for placement in placed:
        for rank, node in enumerate(placement.nodes):
            for each in plans[id(placement), rank]["findings"]:
                if each["severity"] in ("WARN", "FAIL", "UNKNOWN") and each["id"] not in _OF_ONE_HOST:
                    text = f"{each['id']}: {each['severity']}: {each['text']} Found: {each['found']}"
                    nodes.setdefault(text, []).append(node.name)
    yield from (f"{text}, on {', '.join(names)}" for text, names in nodes.items())


_UNKNOWN_MODEL = "PLAN-061"
"""The model is not on this machine, and the hub does not answer: templates/host.yaml."""
_OF_ONE_HOST = frozenset({"PLAN-120", "PLAN-121"})
"""What a plan of one host cannot know of the others: here all are read, and have addresses."""


def _cache_keys(placed: Sequence[Placement], plans: Mapping[tuple[int, int], Any]) -> Iterable[str]:
    """Yield groups with the same kind of nodes whose replicas would not share compiled code."""
    for placement in placed:
        first = next(each for each in placed if each.group == placement.group)
        ours, theirs = (_factors(plans[id(each), 0]) for each in (placement, first))
        differ = sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        if differ:
            text = f"group {placement.group.name}, replica {placement.number} (by {', '.join(differ)})"
            yield finding("TOPO-006", text)


def _factors(found: Mapping[str, Any]) -> dict[str, str]:
    entries = (found.get("cache") or {}).get("entries", ())
    return {name: value for entry in entries for name, value in entry["factors"].items()}
