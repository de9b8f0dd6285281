"""A topology → its plan: nodes of each replica, ports, and each rank's command with reasons.

Each command is decided by the image's entrypoint from the recorded host of its node, as on one host. A first question
for each group tells the parallelism, on which ports and connectors depend; a second one for each rank has all words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from drydock.config.validation import combine_problems
from drydock.core.errors import HostError, InputError
from drydock.model.checks import Findings, list_findings_about
from drydock.model.kv_transfer import KvTransfer
from drydock.model.variant import Role, Variant
from drydock.run.container import BUCKETS
from drydock.topology import groups, kv_transfer_options, pd_ratio, ranks, router
from drydock.topology.entrypoint_client import Ask, Asked
from drydock.topology.findings import format_topology_finding
from drydock.topology.groups import Placement, Traits
from drydock.topology.node_network import choose_interfaces
from drydock.topology.plan_model import Because, Rank, Replica, TopologyPlan
from drydock.topology.ports import UsedPort, find_port_collisions
from drydock.topology.topology_arguments import DEVICES, is_ip, locate_model, rewrite_folder, without_flag
from drydock.topology.topology_file import Read, read_super_pod
from drydock.topology.topology_records import Goals, Topology


class Images(NamedTuple):
    """What runs: images by digest, or names of variants' images that are not built yet."""

    server: str
    router: str


def plan_topology(read: Read, variant: Variant, images: Images, ask: Ask, model: str = "") -> TopologyPlan:
    """Plan a topology; `model` is the folder where the model is read here, if not that of the nodes.

    Raises InputError for what cannot be planned, and HostError if the entrypoint fails.
    """
    topology = read.topology
    if topology.model.startswith(BUCKETS) and topology.model.partition(":")[0] not in variant.buckets:
        text = f"model: found {topology.model}, and {variant.id} reads no model from there"
        raise InputError(text, hint="`./inv run --target TARGET --model s3://…` names the targets that do")
    moved = kv_transfer_options.choose_transfer(variant, topology.groups)
    facts = _ask_node_facts(read, variant, ask)
    node_traits = {
        name: groups.collect_node_traits(host_facts, read_super_pod(read.hosts[name]))
        for name, host_facts in facts.items()
    }
    devices = {name: [device["number"] for device in host_facts["devices"]] for name, host_facts in facts.items()}
    clusters = {name: groups.nvlink_cluster(host_facts) for name, host_facts in facts.items()}
    placed = groups.place_replicas(topology, node_traits, devices, clusters)
    _check_addresses(placed, moved)
    up = {name: host_facts["kernel"].get("interfaces", "") for name, host_facts in facts.items()}
    wired = choose_interfaces(topology, variant, moved, up)
    context = ranks.Context(
        read, (model or topology.model).rstrip("/"), variant, moved, facts, wired, {}, {}, placed, clusters
    )
    context = context._replace(shapes=_ask_group_shapes(context, placed, ask))
    context = context._replace(slots=ranks.allocate_topology_ports(context))
    replicas, cached = _plan_replicas(context, placed, ask)
    _check_ports(topology, replicas)
    return TopologyPlan(
        model=topology.model,
        image=images.server,
        accelerator=variant.accelerator,
        variant=variant.id,
        api_key=topology.api_key or "required",
        replicas=replicas,
        router=router.plan_router(topology, replicas, moved, variant, images.router),
        reasons=(*_list_plan_reasons(context),),
        findings=(*dict.fromkeys((*_check_plan(context, placed, node_traits), *cached)),),
    )


def _check_addresses(placed: Sequence[Placement], moved: KvTransfer | None) -> None:
    """Raise InputError for servers that exchange KV caches at a node whose address is a name: they bind to a number."""
    nodes = [
        node for placement in placed if moved and moved.address for node in placement.nodes if not is_ip(node.address)
    ]
    if nodes:
        where = (f"node {node.name}: address: found {node.address!r}, expected an IPv4 address" for node in nodes)
        hint = "prefill and decode servers exchange KV caches at it; `getent ahostsv4 NAME` shows a name's"
        raise InputError(*where, hint=hint)


# --- questions ------------------------------------------------------------------------------------------------------


def _ask_node_facts(read: Read, variant: Variant, ask: Ask) -> dict[str, Any]:
    """Return the facts of each node; nodes with one recorded host are read once. Raises InputError."""
    paths = sorted(set(read.hosts.values()))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        facts_by_path = dict(zip(paths, pool.map(ask.facts, paths), strict=True))
    if variant.run.devices or variant.run.gpus:
        lacking = [node for node, path in read.hosts.items() if not facts_by_path[path]["devices"]]
        if lacking:
            where = (f"node {node}: no device of {variant.title} in {read.hosts[node].name}" for node in lacking)
            raise InputError(*where, hint=f"record the host with an image for {variant.accelerator}, or change target")
    return {node: facts_by_path[path] for node, path in read.hosts.items()}


def _ask_group_shapes(context: ranks.Context, placed: Sequence[Placement], ask: Ask) -> dict[str, ranks.Shape]:
    """Ask for the first rank of each group, without what depends on the answer: the context has no shapes yet."""
    first = [placement for placement in placed if placement.number == 0]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        plans = list(pool.map(lambda placement: _ask_rank_plan(ask, context, placement, 0), first))
    counts = (
        len(ranks.list_group_devices(placement, 0, context.facts[placement.nodes[0].name])) for placement in first
    )
    shapes = map(ranks.parse_shape, plans, counts)
    return {placement.group.name: shape for placement, shape in zip(first, shapes, strict=True)}


def _ask_rank_plan(ask: Ask, context: ranks.Context, placement: Placement, rank: int) -> Any:
    """Ask for the plan of a rank. Errors name the group, whose flags may be wrong."""
    try:
        return ask.plan(_make_rank_question(context, placement, rank))
    except (InputError, HostError) as error:
        where = f"group {placement.group.name}: "
        hint = _translate_hint(error.hint)
        raise type(error)(where + error.problems[0], *error.problems[1:], hint=hint) from error


def _translate_hint(hint: str) -> str:
    """Return a hint of the entrypoint's `plan` in the words of this verb and of topology.yaml."""
    hint = hint.replace("--model-config FILE", "--model FOLDER")
    hint = re.sub(r"--nnodes (\d+)", r"`nodes: \1` in the group", hint).replace("--nnodes", "`nodes`")
    return f"{hint}; other flags go into the group's `flags`" if _FLAG.search(hint) else hint


_FLAG = re.compile(r"(?<![\w-])--(?!model FOLDER)[a-z]")


def _make_rank_question(context: ranks.Context, placement: Placement, rank: int) -> Asked:
    node = placement.nodes[rank]
    return Asked(
        context.read.hosts[node.name],
        context.model,
        (*_relocate_rank_words(context, placement, rank, context.model), *ranks.chosen_devices(placement, rank)),
        ranks.make_rank_environment(context, placement, node),
    )


def _relocate_rank_words(context: ranks.Context, placement: Placement, rank: int, model: str) -> tuple[str, ...]:
    """Return a rank's words where the model's folder is `model`: here, or in the container."""
    return tuple(
        rewrite_folder(word, context.topology.model, model) for word in ranks.list_rank_words(context, placement, rank)
    )


def _check_ports(topology: Topology, replicas: Iterable[Replica]) -> None:
    """Raise InputError if two listen on one port of a node."""
    used_ports = [UsedPort(topology.router.node, topology.router.port, "the router")] if topology.router else []
    for replica in replicas:
        for rank in replica.ranks:
            used_ports += [
                UsedPort(rank.node, port, f"{purpose} of {replica.group}") for purpose, port in rank.ports.items()
            ]
    if problems := find_port_collisions(used_ports):
        raise combine_problems(problems)


# --- ranks ----------------------------------------------------------------------------------------------------------


def _plan_replicas(
    context: ranks.Context, placed: Sequence[Placement], ask: Ask
) -> tuple[tuple[Replica, ...], list[str]]:
    """Return the replicas, and what needs attention in their plans."""
    each_rank = [(placement, rank) for placement in placed for rank in range(len(placement.nodes))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda of: _ask_rank_plan(ask, context, *of), each_rank))
    plans = {(id(placement), rank): rank_plan for (placement, rank), rank_plan in zip(each_rank, answers, strict=True)}
    replicas = []
    for placement in placed:
        replica_plans = [plans[id(placement), rank] for rank in range(len(placement.nodes))]
        commands = tuple(
            _make_rank(context, placement, rank, rank_plan) for rank, rank_plan in enumerate(replica_plans)
        )
        reasons = (placement.because, *_list_decisions(context, placement.group.role, replica_plans[0]))
        replicas.append(
            Replica(
                group=placement.group.name,
                role=placement.group.role,
                number=placement.number,
                ranks=commands,
                reasons=reasons,
            )
        )
    return tuple(replicas), [
        *_list_rank_warnings(placed, plans, context.variant.findings),
        *_check_cache_keys(placed, plans),
    ]


def _make_rank(context: ranks.Context, placement: Placement, rank: int, rank_plan: Mapping[str, Any]) -> Rank:
    node, model = placement.nodes[rank], locate_model(context.topology.model)
    argv = tuple(_relocate_model_path(context, word) for word in rank_plan["argv"])
    return Rank(
        node=node.name,
        address=node.address,
        rank=rank,
        devices=ranks.list_group_devices(placement, rank, context.facts[node.name]),
        architecture=ranks.find_common_architecture(context.facts[node.name]),
        argv=argv,
        words=("serve", model, *without_flag(_relocate_rank_words(context, placement, rank, model), DEVICES)),
        env=dict(sorted(ranks.make_rank_environment(context, placement, node).items())),
        ports=ranks.list_rank_ports(context, placement, rank, argv),
        before=tuple(tuple(words) for words in rank_plan["before"]),
    )


def _relocate_model_path(context: ranks.Context, text: str) -> str:
    """Write the model as the nodes' containers know it."""
    return rewrite_folder(text, context.model, locate_model(context.topology.model))


def _list_decisions(context: ranks.Context, role: Role, rank_plan: Mapping[str, Any]) -> list[Because]:
    """Return the reasons of what was decided, and of what the stack sets for the role."""
    roles = context.variant.roles
    of_role = {item.setting: item.origin for item in roles[role].settings} if role in roles else {}
    return [
        Because(
            setting=reason["setting"],
            value=_relocate_model_path(context, reason["value"]),
            because=_relocate_model_path(context, reason["because"]),
            instead=tuple(reason["instead"]),
        )
        for reason in rank_plan["reasons"]
        if reason["origin"] in ("decision", of_role.get(reason["setting"]))
    ]


# --- reasons and findings -------------------------------------------------------------------------------------------


def _list_plan_reasons(context: ranks.Context) -> Iterable[Because]:
    topology, moved = context.topology, context.transfer
    if moved:
        because = f"{moved.because} Source: {moved.source}"
        yield Because(setting="connector", value=moved.connector or "", because=because)
        count = f"{pd_ratio.count_nodes(topology.groups, 'prefill')}:{pd_ratio.count_nodes(topology.groups, 'decode')}"
        yield Because(setting="prefill:decode", value=count, because=_explain_node_ratio(topology.goals))
    if context.wires.used:
        yield Because(setting="interface", value=context.wires.shown, because=context.wires.because)
    why_same = "the same on every node, as some of them are in the key of vLLM's compile cache"
    base = f"from network.port_base {topology.network.port_base}"
    for slot, own in sorted(context.slots.items()):
        ports = ", ".join(f"{purpose} {port}" for purpose, port in own.items())
        because = f"{base}; {why_same}" if slot == 0 else f"{base}; of server {slot + 1} on a node with several"
        yield Because(setting="ports", value=ports, because=because)


def _explain_node_ratio(goals: Goals) -> str:
    ratio = pd_ratio.suggest_node_ratio(goals)
    if ratio is None:
        return "nodes as the file says; goals with input and output lengths would be compared"
    return f"nodes as the file says; goals suggest {ratio:.2g} nodes for prefill to one for decode"


def _check_plan(
    context: ranks.Context, placed: Sequence[Placement], node_traits: Mapping[str, Traits]
) -> Iterable[str]:
    topology = context.topology
    devices = {name: [device["number"] for device in found["devices"]] for name, found in context.facts.items()}
    yield from groups.check_placements(topology, placed, node_traits, devices, context.clusters)
    yield from pd_ratio.check_node_ratio(topology.goals, topology.groups)
    if context.transfer:
        yield from kv_transfer_options.check_transfer_support(context.transfer, context.variant)
    reached_nodes = [
        node for placement in placed if context.transfer or len(placement.nodes) > 1 for node in placement.nodes
    ]
    named_nodes = [node for node in topology.nodes if not is_ip(node.address)]
    yield from (format_topology_finding("TOPO-008", f"node {node.name}: {node.address}") for node in named_nodes)
    yield from context.wires.findings(node.name for node in reached_nodes)
    if reached_nodes:
        yield format_topology_finding("TOPO-009", ", ".join(dict.fromkeys(node.name for node in reached_nodes)))


def _list_rank_warnings(
    placed: Sequence[Placement], plans: Mapping[tuple[int, int], Any], findings: Findings
) -> Iterable[str]:
    """Yield what the plans of the ranks warn of, each once with all its nodes.

    Two kinds are left out. What a plan of one host cannot know of a topology: all hosts are read, and have addresses, a
    secret, and a key unless topology.yaml says `api_key: none`. And what the recording lacked and each rendered
    container has: capabilities, /dev/shm, security, user, privileges.
    """
    left_out = list_findings_about(findings, "one-host") | list_findings_about(findings, "rendered")
    nodes: dict[str, list[str]] = {}
    for placement in placed:
        for rank, node in enumerate(placement.nodes):
            for finding in plans[id(placement), rank]["findings"]:
                if finding["severity"] in ("WARN", "FAIL", "UNKNOWN") and finding["id"] not in left_out:
                    text = f"{finding['id']}: {finding['severity']}: {finding['text']} Found: {finding['found']}"
                    nodes.setdefault(text, []).append(node.name)
    yield from (f"{text}, on {', '.join(dict.fromkeys(names))}" for text, names in nodes.items())


def _check_cache_keys(placed: Sequence[Placement], plans: Mapping[tuple[int, int], Any]) -> Iterable[str]:
    """Yield groups with the same kind of nodes whose replicas would not share compiled code."""
    for placement in placed:
        first = next(candidate for candidate in placed if candidate.group == placement.group)
        ours, theirs = (_collect_cache_factors(plans[id(candidate), 0]) for candidate in (placement, first))
        differ = sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        if differ:
            text = f"group {placement.group.name}, replica {placement.number} (by {', '.join(differ)})"
            yield format_topology_finding("TOPO-006", text)


def _collect_cache_factors(rank_plan: Mapping[str, Any]) -> dict[str, str]:
    entries = (rank_plan.get("cache") or {}).get("entries", ())
    return {name: value for entry in entries for name, value in entry["factors"].items()}
