"""Over which NUMA nodes and hosts vLLM's CPU backend splits a model. Pure.

Sources: vLLM 0.32's platforms/cpu.py (CpuPlatform.check_and_update_config, discover_numa_topology) and
v1/worker/cpu_worker.py (CPUWorker.init_device).
"""

from __future__ import annotations

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import parse_id_list
from entrypoints.core.records import Value
from entrypoints.decide.cpu import intents
from entrypoints.decide.cpu.binding import Domain, Layout, list_rank_domains, place_ranks, time_limit
from entrypoints.decide.cpu.executor import BIND, has_room_for_workers
from entrypoints.decide.cpu.memory import find_layout_room, kv_share
from entrypoints.decide.cpu.rank_memory import whole_gib
from entrypoints.decide.cpu.user_binding import place_on_lists, read_user_lists
from entrypoints.decide.decision_input import Case
from entrypoints.decide.parallelism.constraints import check_experts, impossible_size, list_tensor_sizes
from entrypoints.decide.parallelism.hosts import count_hosts
from entrypoints.decide.parallelism.rules import Rules
from entrypoints.decide.records import gib
from entrypoints.request.flags import DATA, EXPERT, LOCAL, NODES, PIPELINE
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "CPU_VISIBLE_MEMORY_NODES"

RULES = Rules(usable=1, reserved=0, activations=0)
"""For how a model divides, as vLLM itself requires on every platform; experts are whole only on request: vLLM's CPU
manual recommends no expert parallelism, and some kernels refuse it (0.32 fused_moe/experts/cpu_moe.py)."""

_RANKS_PER_CPU = 4
"""More ranks than this per CPU are a typing error."""


def choose_layout(case: Case, size: int) -> tuple[Layout, dict[str, Value]]:
    """Choose the NUMA nodes that the model is split over, or for throughput a copy on each node."""
    domains = list_rank_domains(case.facts, visible_nodes(case.user_flags))
    user, hosts = case.user_flags.number(intents.TENSOR), count_hosts(case.user_flags)
    lists = read_user_lists(case.facts, case.user_flags)
    if lists and not user and hosts == 1:
        return _on_lists(case, domains, lists)
    if hosts > 1 and not user:
        return _over_hosts(case, domains, hosts)
    check_experts(case.model, _has_expert_parallelism(case))
    if user:
        user_layout, error = (
            _make_cpu_layout(case, domains, user),
            impossible_size(case.model, RULES, user, _has_expert_parallelism(case)),
        )
        if error:
            raise error
        return user_layout, {intents.TENSOR: Value(str(user), "")}
    copies = _choose_copies_layout(case, domains, size)
    if copies:
        small = "" if case.user_flags.intents.optimize else _too_small(case, size)
        return copies, intents.choose_copies(copies.data, small)
    layout, value = _choose_split_layout(case, domains, size)
    return layout, {intents.TENSOR: value}


def _on_lists(
    case: Case, domains: tuple[Domain, ...], lists: tuple[tuple[int, ...], ...]
) -> tuple[Layout, dict[str, Value]]:
    """Return one rank for each of the user's lists: a split, or copies of a model that none divides."""
    user_flags, geometry, count = case.user_flags, case.model.geometry, len(lists)
    if user_flags.number(PIPELINE) or user_flags.number(DATA) or user_flags.number(LOCAL):
        layout = _make_cpu_layout(case, domains, 1)
        return layout, {intents.TENSOR: Value("1", "the user's other parallelism fills the lists")}
    ranks = place_on_lists(domains, lists)
    divides = geometry is not None and count in list_tensor_sizes(case.model, RULES, count)
    if count > 1 and (not divides or intents.wants_copies(user_flags, geometry, small=False)):
        return Layout(1, 1, count, ranks), intents.choose_copies(count, f"{BIND} has {count} lists of CPUs")
    because = f"{BIND} has {count} list{'s' if count > 1 else ''} of CPUs, one for each rank"
    return Layout(count, 1, 1, ranks), {intents.TENSOR: Value(str(count), because)}


def _has_expert_parallelism(case: Case) -> bool:
    return case.user_flags.flag(EXPERT) == "True"


def _over_hosts(case: Case, domains: tuple[Domain, ...], hosts: int) -> tuple[Layout, dict[str, Value]]:
    """Return tensor parallelism over several hosts, with one rank per NUMA node where the heads allow it. Raises USAGE.

    vLLM 0.32's CPU backend ends at the first request with pipeline stages on several hosts (measured).
    """
    geometry, most = case.model.geometry, hosts * len(domains)
    possible = [count for count in range(hosts, most + 1, hosts) if geometry is None or geometry.divides(count)]
    if not possible:
        heads = f"{geometry.heads} heads and {geometry.kv_heads} KV heads" if geometry else "its heads"
        message = f"{NODES} {hosts}: {case.model.name} has {heads}, which are not divisible by {hosts}"
        raise EntrypointError(USAGE, message, "change the number of hosts")
    because = f"one rank for each NUMA node of {hosts} hosts, as far as the heads are divisible"
    instead = (f"pipeline stages: vLLM's CPU backend fails at the first request; {most}: the most ranks",)
    return _make_cpu_layout(case, domains, possible[-1]), {intents.TENSOR: Value(str(possible[-1]), because, instead)}


def _choose_copies_layout(case: Case, domains: tuple[Domain, ...], size: int) -> Layout | None:
    """Return a layout with a full copy on each node, if intents call for it and each node has memory and CPU time."""
    nodes, small = len(domains), bool(_too_small(case, size)) and has_room_for_workers(case.facts)
    if (
        nodes == 1
        or not intents.wants_copies(case.user_flags, case.model.geometry, small=small)
        or describe_cpu_time_limit(case, domains)
    ):
        return None
    layout = Layout(1, 1, nodes, place_ranks(domains, nodes, time_limit(case.facts)))
    return layout if whole_gib(find_layout_room(case, layout, size), kv_share(case)) >= 1 else None


def _choose_split_layout(case: Case, domains: tuple[Domain, ...], size: int) -> tuple[Layout, Value]:
    counts, because, instead = _list_rank_counts(case, domains, size)
    layouts = [_make_cpu_layout(case, domains, count) for count in counts]
    fitting = [layout for layout in layouts if whole_gib(find_layout_room(case, layout, size), kv_share(case)) >= 1]
    layout = fitting[0] if fitting else max(layouts, key=lambda layout: find_layout_room(case, layout, size).left)
    if layout is not layouts[0]:
        because = f"{because}; but the weights need the memory of {layout.tensor} nodes"
    return layout, Value(str(layout.tensor), because, instead)


def visible_nodes(user_flags: UserFlags) -> tuple[int, ...] | None:
    """Return the memory nodes that the user selects; None for all. Raises USAGE."""
    visible = user_flags.variable(VISIBLE)
    try:
        return None if visible is None else parse_id_list(visible)
    except ValueError as error:
        raise EntrypointError(USAGE, f"{VISIBLE}={visible}: expected node numbers, such as 0,1") from error


def _list_rank_counts(case: Case, domains: tuple[Domain, ...], size: int) -> tuple[list[int], str, tuple[str, ...]]:
    """Return the possible numbers of ranks, best first, with the reason for the first and against others."""
    nodes = len(domains)
    geometry = case.model.geometry
    possible = list(list_tensor_sizes(case.model, RULES, nodes)) if geometry else [1]
    if nodes == 1:
        return possible, "the host has one NUMA node with cores and memory", ()
    one = _reason_for_one(case, domains, size)
    if one:
        return possible, one, (f"{nodes}, one rank per node: every token would wait for the link between sockets",)
    best = possible[-1]
    because = f"one rank for each of {nodes} NUMA nodes, so that no rank reads another node's memory"
    if best < nodes and geometry:
        heads = f"{geometry.heads} heads and {geometry.kv_heads} KV heads"
        because = f"the largest number of the {nodes} NUMA nodes by which {heads} are divisible"
    instead = ("data parallelism with --optimize throughput: higher throughput, but each answer is slower",)
    return possible[::-1], because, instead


def _reason_for_one(case: Case, domains: tuple[Domain, ...], size: int) -> str:
    """Return why one rank is enough; empty if it is not."""
    enough = describe_cpu_time_limit(case, domains)
    if enough:
        return enough
    if case.model.geometry is None:
        return f"{case.model.unknown}, so the model's size is unknown; set -tp to use more nodes"
    return _too_small(case, size)


def _too_small(case: Case, size: int) -> str:
    """Return that the model is too small to be split; empty if it is not, or its size is unknown."""
    small, weights = case.thresholds.bytes("one_node_weights_gib"), case.model.weights
    if not weights or weights.loaded(size) >= small:
        return ""
    loaded = gib(weights.loaded(size))
    return f"{loaded} of weights are too few to split: below {gib(small)} the link between sockets costs more"


def describe_cpu_time_limit(case: Case, domains: tuple[Domain, ...]) -> str:
    """Return that the container's CPU time keeps only one node busy; empty if it keeps more busy."""
    limit, cores = time_limit(case.facts), max(len(domain.cores) for domain in domains)
    if limit is None or limit > cores:
        return ""
    return f"the container's CPU time covers {limit} cores, and one NUMA node already has {cores}"


def _make_cpu_layout(case: Case, domains: tuple[Domain, ...], tensor: int) -> Layout:
    user_flags = case.user_flags
    pipeline = user_flags.number(PIPELINE) or 1
    data = user_flags.number("--data-parallel-size-local") or user_flags.number("--data-parallel-size") or 1
    count, most = max(1, tensor * pipeline * data // count_hosts(user_flags)), _RANKS_PER_CPU * len(case.facts.cpus)
    if count > most:
        message = f"-tp {tensor} -pp {pipeline} -dp {data}: {count} ranks, expected at most {most}"
        raise EntrypointError(USAGE, message, f"lower -tp, -pp or -dp: {len(case.facts.cpus)} CPUs are available")
    lists = read_user_lists(case.facts, user_flags)
    if lists and len(lists) != count:
        message = (
            f"{BIND} has {len(lists)} lists of CPUs, and -tp {tensor} -pp {pipeline} -dp {data} makes {count} ranks"
        )
        raise EntrypointError(USAGE, f"{message} on this host", f"write {count} lists with | between, or leave one out")
    ranks = place_on_lists(domains, lists) if lists else place_ranks(domains, count, time_limit(case.facts))
    return Layout(tensor, pipeline, data, ranks)
