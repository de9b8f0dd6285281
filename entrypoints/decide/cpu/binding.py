"""The cores on which each rank's threads run. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Facts
from entrypoints.decide.records import Thresholds

Core = tuple[int, ...]
"""The hardware threads of one physical core that may be used."""


class Domain(NamedTuple):
    """A NUMA node with both cores and memory for a rank."""

    node: int
    cores: tuple[Core, ...]
    memory: int
    """Available bytes."""


class Rank(NamedTuple):
    """One worker process: its node, and its share of the node's cores and memory."""

    node: int
    cores: tuple[Core, ...]
    memory: int


class Layout(NamedTuple):
    """The ranks and their parallelism; each data-parallel engine holds a full copy."""

    tensor: int
    pipeline: int
    data: int
    ranks: tuple[Rank, ...]

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the weights."""
        return self.tensor * self.pipeline


def list_rank_domains(facts: Facts, visible: tuple[int, ...] | None = None) -> tuple[Domain, ...]:
    """Return the nodes that can hold a rank; only the `visible` ones, if given.

    If no node has both cores and memory, the whole machine is one domain.
    """
    nodes = [node for node in facts.nodes if visible is None or node.id in visible]
    with_memory = (
        Domain(node.id, _group_cpus_by_core(facts, set(node.cpus)), node.memory_free)
        for node in nodes
        if node.memory_total
    )
    with_cores = tuple(domain for domain in with_memory if domain.cores)
    if with_cores:
        return with_cores
    all_cores = _group_cpus_by_core(facts, {cpu.id for cpu in facts.cpus})
    return (Domain(facts.nodes[0].id if facts.nodes else 0, all_cores, facts.memory.available),)


def _group_cpus_by_core(facts: Facts, members: set[int]) -> tuple[Core, ...]:
    usable = {cpu.id for cpu in facts.cpus} & members
    cores = {tuple(sorted(usable & set(cpu.siblings))) for cpu in facts.cpus if cpu.id in usable}
    return tuple(sorted(cores))


def time_limit(facts: Facts) -> int | None:
    """Return how many threads the container's CPU quota can keep running; None without a quota."""
    quota = facts.cgroup.cpu_quota
    return None if quota is None else max(1, int(quota))


def place_ranks(available: tuple[Domain, ...], count: int, limit: int | None) -> tuple[Rank, ...]:
    """Give each rank its node, cores and memory: nodes with the most memory first, several ranks per node if needed."""
    largest = sorted(available, key=lambda domain: (-domain.memory, domain.node))[:count]
    sorted_domains = sorted(largest, key=lambda domain: domain.node)
    homes = [sorted_domains[number * len(sorted_domains) // count] for number in range(count)]
    most = None if limit is None else max(1, limit // count)
    ranks = []
    for number, home in enumerate(homes):
        on_node = homes.count(home)
        cores = _slice_cores(home.cores, number - homes.index(home), on_node)[:most]
        ranks.append(Rank(home.node, cores, home.memory // on_node))
    return tuple(ranks)


def _slice_cores(cores: tuple[Core, ...], number: int, count: int) -> tuple[Core, ...]:
    """Return part `number` of `count` parts of about equal size; every rank gets at least one core."""
    part = cores[number * len(cores) // count : (number + 1) * len(cores) // count]
    return part or cores[number % len(cores) : number % len(cores) + 1]


def count_reserved_cores(rank: Rank, thresholds: Thresholds) -> int:
    """Return how many of a rank's cores are reserved for the API server: 0, 1 or 2, by the number of cores."""
    count = len(rank.cores)
    if count >= thresholds.whole("reserve_two_cores_from"):
        return 2
    return 1 if count >= thresholds.whole("reserve_one_core_from") else 0


def reserved_by_user(total: int, count: int) -> tuple[int, ...]:
    """Divide the user's number of reserved cores over the ranks as vLLM does: the last ranks get the remainder."""
    return tuple(total // count + (number >= count - total % count) for number in range(count))


def list_bound_threads(rank: Rank, keep: int, per_core: int) -> tuple[int, ...]:
    """Return the hardware threads that a rank binds: `per_core` of each core, except the last `keep` cores."""
    bound = rank.cores[: max(1, len(rank.cores) - keep)]
    return tuple(sorted(thread for core in bound for thread in core[:per_core]))


def format_thread_binding(ranks: tuple[Rank, ...], keeps: tuple[int, ...], per_core: int) -> str:
    """Return VLLM_CPU_OMP_THREADS_BIND: the ranks' threads in order, separated by `|`."""
    lists = (list_bound_threads(rank, keep, per_core) for rank, keep in zip(ranks, keeps, strict=True))
    return "|".join(map(format_id_list, lists))
