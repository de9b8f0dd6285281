"""What memory is really there for each rank, and how much of it the KV cache gets. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.core.records import Facts
from entrypoints.decide.records import GIB, Thresholds, gib
from entrypoints.decide.spread.binding import Rank
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import Weights

BLOCK = 128
"""Tokens of one KV cache block on the CPU backend, unless the user chose another size."""


class RankRoom(NamedTuple):
    """What is left for one rank's KV cache, and the pool that leaves the least."""

    left: int
    pool: str
    there: int
    """Bytes that the pool holds for one rank."""
    taken: int
    """Bytes of it that weights and processes take."""

    def words(self) -> str:
        """Say how the room comes about."""
        return f"{self.pool} has {gib(self.there)} per rank, weights and processes take {gib(self.taken)}"


class Load(NamedTuple):
    """What one rank takes before any KV cache."""

    weights: int
    on_disk: int
    """Its share of the weight files."""
    ranks: int
    """Of all engines together."""


def load(weights: Weights | None, size: int, shards: int, ranks: int) -> Load:
    """Split the weights over the ranks that share one copy; what is not known counts nothing here."""
    if weights is None:
        return Load(0, 0, ranks)
    return Load(weights.loaded(size) // shards, weights.on_disk // ranks, ranks)


def smallest_room(facts: Facts, ranks: tuple[Rank, ...], taken: Load, thresholds: Thresholds) -> RankRoom:
    """Return the room of the rank that has the least: it decides for all.

    Three accounts must hold: the rank's NUMA node, the host's available memory, and the container's limit. In the last
    one the weight files count twice, since the page cache that reading them fills is charged to the container, and
    vLLM's worker subtracts it when it checks whether the KV cache fits.
    """
    server, worker = thresholds.bytes("server_memory_gib"), thresholds.bytes("rank_memory_gib")
    per_rank = server // taken.ranks + worker + taken.weights
    rooms = [_room(f"NUMA node {rank.node}", rank.memory, server + worker + taken.weights) for rank in ranks]
    rooms.append(_room("available memory", facts.memory.available // taken.ranks, per_rank))
    limit = facts.cgroup.memory_limit
    if limit is not None and limit < facts.memory.total:
        there = max(0, limit - facts.cgroup.memory_used) // taken.ranks
        rooms.append(_room("the container's memory limit", there, per_rank + taken.on_disk))
    return min(rooms, key=lambda room: room.left)


def _room(pool: str, there: int, taken: int) -> RankRoom:
    return RankRoom(max(0, there - taken), pool, there, taken)


def whole_gib(room: RankRoom, share: float) -> int:
    """Return the whole GiB of a share of the room: VLLM_CPU_KVCACHE_SPACE takes no fraction."""
    return int(room.left * share) // GIB


class CacheDemand(NamedTuple):
    """What may be asked of the server at once."""

    length: int
    """Tokens of the longest sequence."""
    sequences: int
    tokens: int
    """Tokens that the cores can keep in progress."""


class Use(NamedTuple):
    """The most KV cache that can be of use, and why."""

    space: int
    """Whole GiB."""
    because: str


def useful(geometry: Geometry, demand: CacheDemand, size: int, shards: int) -> Use:
    """Return the KV cache that all sequences at full length would fill, or that the cores keep busy, if less.

    One full sequence always counts as useful.
    """
    one = geometry.kv_bytes(demand.length, size, shards)
    full = demand.sequences * one
    busy = max(one, geometry.kv_bytes(1, size, shards) * demand.tokens)
    if full <= busy:
        return Use(_up(full), f"{demand.sequences} sequences of {demand.length} tokens need no more")
    return Use(_up(busy), f"the cores keep no more than {demand.tokens} tokens in progress")


def _up(size: int) -> int:
    return max(1, -(-size // GIB))


def longest(geometry: Geometry, space: int, size: int, shards: int) -> int:
    """Return the longest sequence, in whole blocks, whose KV cache fits `space` bytes; one block is vLLM's own."""
    low, high = 0, space // BLOCK
    while low < high:  # the most blocks that fit; more never take less
        middle = (low + high + 1) // 2
        if geometry.kv_bytes(middle * BLOCK, size, shards) <= space:
            low = middle
        else:
            high = middle - 1
    return max(0, low - 1) * BLOCK
