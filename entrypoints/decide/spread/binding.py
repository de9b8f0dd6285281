"""Which cores each rank's threads run on. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Facts
from entrypoints.decide.records import Thresholds

Core = tuple[int, ...]
"""The hardware threads of one physical core that may be used."""


class Domain(NamedTuple):
    """A NUMA node that has both cores and memory for a rank."""

    node: int
    cores: tuple[Core, ...]
    memory: int
    """Bytes that can be had there."""


class Rank(NamedTuple):
    """One worker process: where it runs, and its share of what is there."""

    node: int
    cores: tuple[Core, ...]
    memory: int


def domains(facts: Facts, visible: tuple[int, ...] | None = None) -> tuple[Domain, ...]:
    """Return the nodes that can hold a rank, `visible` ones only when given.

    Where no node has both cores and memory, everything together is one.
    """
    nodes = [node for node in facts.nodes if visible is None or node.id in visible]
    found = (Domain(node.id, _cores(facts, set(node.cpus)), node.memory_free) for node in nodes if node.memory_total)
    whole = tuple(domain for domain in found if domain.cores)
    if whole:
        return whole
    everything = _cores(facts, {cpu.id for cpu in facts.cpus})
    return (Domain(facts.nodes[0].id if facts.nodes else 0, everything, facts.memory.available),)


def _cores(facts: Facts, members: set[int]) -> tuple[Core, ...]:
    usable = {cpu.id for cpu in facts.cpus} & members
    cores = {tuple(sorted(usable & set(cpu.siblings))) for cpu in facts.cpus if cpu.id in usable}
    return tuple(sorted(cores))


def time_limit(facts: Facts) -> int | None:
    """Return how many threads the container's CPU time can keep running; None when it is not limited."""
    quota = facts.cgroup.cpu_quota
    return None if quota is None else max(1, int(quota))


def place(found: tuple[Domain, ...], count: int, limit: int | None) -> tuple[Rank, ...]:
    """Give each rank its node, cores and memory: the nodes with most memory first, several ranks a node if need be."""
    freest = sorted(found, key=lambda domain: (-domain.memory, domain.node))[:count]
    chosen = sorted(freest, key=lambda domain: domain.node)
    homes = [chosen[number * len(chosen) // count] for number in range(count)]
    most = None if limit is None else max(1, limit // count)
    return tuple(
        Rank(home.node, _part(home.cores, number - homes.index(home), homes.count(home))[:most], _share(home, homes))
        for number, home in enumerate(homes)
    )


def _share(home: Domain, homes: list[Domain]) -> int:
    return home.memory // homes.count(home)


def _part(cores: tuple[Core, ...], number: int, count: int) -> tuple[Core, ...]:
    """Return the given one of `count` parts of about equal size; every rank gets at least one core."""
    part = cores[number * len(cores) // count : (number + 1) * len(cores) // count]
    return part or cores[number % len(cores) : number % len(cores) + 1]


def reserved(rank: Rank, thresholds: Thresholds) -> int:
    """Return how many of a rank's cores the server keeps, where that pays."""
    count = len(rank.cores)
    return (count >= thresholds.whole("reserve_one_core_from")) + (count >= thresholds.whole("reserve_two_cores_from"))


def reserved_by_user(total: int, count: int) -> tuple[int, ...]:
    """Split a user's number of reserved cores over the ranks as vLLM does: the rest goes to the last ones."""
    return tuple(total // count + (number >= count - total % count) for number in range(count))


def threads(rank: Rank, keep: int, per_core: int) -> tuple[int, ...]:
    """Return the hardware threads that a rank binds: the first `per_core` of each core but the last `keep` ones."""
    bound = rank.cores[: max(1, len(rank.cores) - keep)]
    return tuple(sorted(thread for core in bound for thread in core[:per_core]))


def binding(ranks: tuple[Rank, ...], keeps: tuple[int, ...], per_core: int) -> str:
    """Return VLLM_CPU_OMP_THREADS_BIND: the ranks' threads in order, parted by `|`."""
    lists = (threads(rank, keep, per_core) for rank, keep in zip(ranks, keeps, strict=True))
    return "|".join(map(format_id_list, lists))
