"""A topology → its plan: nodes of each replica, ports, and each rank's command with reasons.

Each command is decided by the image's entrypoint from the recorded host of its node, as on one host. A first question
for each group tells the parallelism, on which ports and connectors depend; a second one for each rank has all words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from drydock.config.validation import failure
from drydock.core.errors import HostError, InputError
from drydock.model.transfer import KvTransfer
from drydock.model.variant import Role, Variant
from drydock.run.container import BUCKETS
from drydock.topology import groups, pd_ratio, ranks, router, transfer
from drydock.topology.arguments import DEVICES, in_container, is_ip, relocated, without_flag
from drydock.topology.entrypoint_client import Ask, Asked
from drydock.topology.findings import finding
from drydock.topology.groups import Placement, Traits
from drydock.topology.network import wires
from drydock.topology.plan_model import Because, Rank, Replica, TopologyPlan
from drydock.topology.ports import UsedPort, collisions
from drydock.topology.read import Read, super_pod
from drydock.topology.records import Goals, Topology


class Images(NamedTuple):
    """What runs: images by digest, or names of variants' images that are not built yet."""

    server: str
    router: str


def plan(read: Read, variant: Variant, images: Images, ask: Ask, model: str = "") -> TopologyPlan:
    """Plan a topology; `model` is the folder where the model is read here, if not that of the nodes.

    Raises InputError for what cannot be planned, and HostError if the entrypoint fails.
    """
    topology = read.topology
    if topology.model.startswith(BUCKETS) and topology.model.partition(":")[0] not in variant.buckets:
        text = f"model: found {topology.model}, and {variant.id} reads no model from there"
        raise InputError(text, hint="`./inv run --target TARGET --model s3://…` names the targets that do")
    moved = transfer.checked(variant, topology.groups)
    facts = _facts(read, variant, ask)
    known = {name: groups.traits(found, super_pod(read.hosts[name])) for name, found in facts.items()}
    devices = {name: [device["number"] for device in found["devices"]] for name, found in facts.items()}
    clusters = {name: groups.nvlink_cluster(found) for name, found in facts.items()}
    placed = groups.place(topology, known, devices, clusters)
    _check_addresses(placed, moved)
    up = {name: found["kernel"].get("interfaces", "") for name, found in facts.items()}
    wired = wires(topology, variant, moved, up)
    context = ranks.Context(
        read, (model or topology.model).rstrip("/"), variant, moved, facts, wired, {}, {}, placed, clusters
    )
    context = context._replace(shapes=_shapes(context, placed, ask))
    context = context._replace(slots=ranks.allocated(context))
    replicas, cached = _replicas(context, placed, ask)
    _check_ports(topology, replicas)
    return TopologyPlan(
        model=topology.model,
        image=images.server,
        accelerator=variant.accelerator,
        variant=variant.id,
        api_key=topology.api_key or "required",
        replicas=replicas,
        router=router.plan(topology, replicas, moved, variant, images.router),
        reasons=(*_reasons(context),),
        findings=(*dict.fromkeys((*_findings(context, placed, known), *cached)),),
    )


def _check_addresses(placed: Sequence[Placement], moved: KvTransfer | None) -> None:
    """Raise InputError for servers that exchange KV caches at a node whose address is a name: they bind to a number."""
    nodes = [node for each in placed if moved and moved.address for node in each.nodes if not is_ip(node.address)]
    if nodes:
        where = (f"node {node.name}: address: found {node.address!r}, expected an IPv4 address" for node in nodes)
        hint = "prefill and decode servers exchange KV caches at it; `getent ahostsv4 NAME` shows a name's"
        raise InputError(*where, hint=hint)


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


def _shapes(context: ranks.Context, placed: Sequence[Placement], ask: Ask) -> dict[str, ranks.Shape]:
    """Ask for the first rank of each group, without what depends on the answer: the context has no shapes yet."""
    first = [each for each in placed if each.number == 0]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        plans = list(pool.map(lambda each: _ask(ask, context, each, 0), first))
    counts = (len(ranks.devices(each, 0, context.facts[each.nodes[0].name])) for each in first)
    shapes = map(ranks.shape_of, plans, counts)
    return {each.group.name: shape for each, shape in zip(first, shapes, strict=True)}


def _ask(ask: Ask, context: ranks.Context, placement: Placement, rank: int) -> Any:
    """Ask for the plan of a rank. Errors name the group, whose flags may be wrong."""
    try:
        return ask.plan(_question(context, placement, rank))
    except (InputError, HostError) as error:
        where = f"group {placement.group.name}: "
        hint = error.hint.replace("--model-config FILE", "--model FOLDER")  # that is this task's option for it
        raise type(error)(where + error.problems[0], *error.problems[1:], hint=hint) from error


def _question(context: ranks.Context, placement: Placement, rank: int) -> Asked:
    node = placement.nodes[rank]
    return Asked(
        context.read.hosts[node.name],
        context.model,
        (*_words(context, placement, rank, context.model), *ranks.chosen_devices(placement, rank)),
        ranks.environment(context, placement, node),
    )


def _words(context: ranks.Context, placement: Placement, rank: int, model: str) -> tuple[str, ...]:
    """Return a rank's words where the model's folder is `model`: here, or in the container."""
    return tuple(relocated(word, context.topology.model, model) for word in ranks.words(context, placement, rank))


def _check_ports(topology: Topology, replicas: Iterable[Replica]) -> None:
    """Raise InputError if two listen on one port of a node."""
    held = [UsedPort(topology.router.node, topology.router.port, "the router")] if topology.router else []
    for replica in replicas:
        for rank in replica.ranks:
            held += [UsedPort(rank.node, port, f"{purpose} of {replica.group}") for purpose, port in rank.ports.items()]
    if problems := collisions(held):
        raise failure(problems)


# --- ranks ----------------------------------------------------------------------------------------------------------


def _replicas(context: ranks.Context, placed: Sequence[Placement], ask: Ask) -> tuple[tuple[Replica, ...], list[str]]:
    """Return the replicas, and what needs attention in their plans."""
    each_rank = [(placement, rank) for placement in placed for rank in range(len(placement.nodes))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda of: _ask(ask, context, *of), each_rank))
    plans = {(id(placement), rank): each for (placement, rank), each in zip(each_rank, found, strict=True)}
    replicas = []
    for placement in placed:
        own = [plans[id(placement), rank] for rank in range(len(placement.nodes))]
        commands = tuple(_rank(context, placement, rank, each) for rank, each in enumerate(own))
        reasons = (placement.because, *_decisions(context, placement.group.role, own[0]))
        replicas.append(
            Replica(
                group=placement.group.name,
                role=placement.group.role,
                number=placement.number,
                ranks=commands,
                reasons=reasons,
            )
        )
    return tuple(replicas), [*_wrong(placed, plans), *_cache_keys(placed, plans)]


def _rank(context: ranks.Context, placement: Placement, rank: int, found: Mapping[str, Any]) -> Rank:
    node, model = placement.nodes[rank], in_container(context.topology.model)
    argv = tuple(_on_the_node(context, word) for word in found["argv"])
    return Rank(
        node=node.name,
        address=node.address,
        rank=rank,
        devices=ranks.devices(placement, rank, context.facts[node.name]),
        architecture=ranks.architecture(context.facts[node.name]),
        argv=argv,
        words=("serve", model, *without_flag(_words(context, placement, rank, model), DEVICES)),
        env=dict(sorted(ranks.environment(context, placement, node).items())),
        ports=ranks.listens(context, placement, rank, argv),
        before=tuple(tuple(words) for words in found["before"]),
    )


def _on_the_node(context: ranks.Context, text: str) -> str:
    """Write the model as the nodes' containers know it."""
    return relocated(text, context.model, in_container(context.topology.model))


def _decisions(context: ranks.Context, role: Role, found: Mapping[str, Any]) -> list[Because]:
    """Return the reasons of what was decided, and of what the stack sets for the role."""
    roles = context.variant.roles
    of_role = {item.setting: item.origin for item in roles[role].settings} if role in roles else {}
    return [
        Because(
            setting=reason["setting"],
            value=_on_the_node(context, reason["value"]),
            because=_on_the_node(context, reason["because"]),
            instead=tuple(reason["instead"]),
        )
        for reason in found["reasons"]
        if reason["origin"] in ("decision", of_role.get(reason["setting"]))
    ]


# --- reasons and findings -------------------------------------------------------------------------------------------


def _reasons(context: ranks.Context) -> Iterable[Because]:
    topology, moved = context.topology, context.transfer
    if moved:
        because = f"{moved.because} Source: {moved.source}"
        yield Because(setting="connector", value=moved.connector or "", because=because)
        count = f"{pd_ratio.nodes_of(topology.groups, 'prefill')}:{pd_ratio.nodes_of(topology.groups, 'decode')}"
        yield Because(setting="prefill:decode", value=count, because=_ratio(topology.goals))
    if context.wires.used:
        yield Because(setting="interface", value=context.wires.shown, because=context.wires.because)
    same = "the same on every node, as some of them are in the key of vLLM's compile cache"
    base = f"from network.port_base {topology.network.port_base}"
    for slot, own in sorted(context.slots.items()):
        ports = ", ".join(f"{purpose} {port}" for purpose, port in own.items())
        because = f"{base}; {same}" if slot == 0 else f"{base}; of server {slot + 1} on a node with several"
        yield Because(setting="ports", value=ports, because=because)


def _ratio(goals: Goals) -> str:
    wanted = pd_ratio.wanted(goals)
    if wanted is None:
        return "nodes as the file says; goals with input and output lengths would be compared"
    return f"nodes as the file says; goals suggest {wanted:.2g} nodes for prefill to one for decode"


def _findings(context: ranks.Context, placed: Sequence[Placement], known: Mapping[str, Traits]) -> Iterable[str]:
    topology = context.topology
    devices = {name: [device["number"] for device in found["devices"]] for name, found in context.facts.items()}
    yield from groups.findings(topology, placed, known, devices, context.clusters)
    yield from pd_ratio.findings(topology.goals, topology.groups)
    if context.transfer:
        yield from transfer.findings(context.transfer, context.variant)
    used = [node for each in placed if context.transfer or len(each.nodes) > 1 for node in each.nodes]
    named = [node for node in topology.nodes if not is_ip(node.address)]
    yield from (finding("TOPO-008", f"node {node.name}: {node.address}") for node in named)
    yield from context.wires.findings(node.name for node in used)
    if used:
        yield finding("TOPO-009", ", ".join(dict.fromkeys(node.name for node in used)))


def _wrong(placed: Sequence[Placement], plans: Mapping[tuple[int, int], Any]) -> Iterable[str]:
    """Yield what the plans of the ranks warn of, each once with all its nodes."""
    nodes: dict[str, list[str]] = {}
    for placement in placed:
        for rank, node in enumerate(placement.nodes):
            for each in plans[id(placement), rank]["findings"]:
                if each["severity"] in ("WARN", "FAIL", "UNKNOWN") and each["id"] not in _OF_ONE_HOST | _RENDERED:
                    text = f"{each['id']}: {each['severity']}: {each['text']} Found: {each['found']}"
                    nodes.setdefault(text, []).append(node.name)
    yield from (f"{text}, on {', '.join(dict.fromkeys(names))}" for text, names in nodes.items())


_OF_ONE_HOST = frozenset({"PLAN-092", "PLAN-120", "PLAN-121", "PLAN-122"})
"""What a plan of one host cannot know of a topology: all hosts are read, and have addresses, a secret, and a key unless
topology.yaml says `api_key: none`."""
_RENDERED = frozenset({"RUN-003", "RUN-005", "RUN-006", "RUN-007", "RUN-008"})
"""What the recording lacked and each rendered container has: capabilities, /dev/shm, security, user, privileges."""


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
