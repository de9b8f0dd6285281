"""The memory that each CPU rank can use, and the KV cache's part of it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.core.records import Facts
from entrypoints.core.units import GIB, MIB
from entrypoints.decide.cpu.binding import Rank
from entrypoints.decide.records import Thresholds, does_not_fit, gib
from entrypoints.model.geometry import Geometry
from entrypoints.model.weights import Weights
from entrypoints.request.flags import BLOCK_SIZE, BLOCKS, CACHE_BYTES
from entrypoints.request.vllm_flags import UserFlags

_EXPERTS_OF_TOKEN = 8

BLOCK = 128
"""Tokens of one KV cache block on the CPU backend, unless the user sets another size."""


class RankRoom(NamedTuple):
    """The memory left for one rank's KV cache, and the pool that limits it."""

    left: int
    pool: str
    available: int
    """Bytes of the pool for one rank."""
    taken: int
    """Bytes of it that weights and processes take."""

    def describe(self) -> str:
        """Return the figures as a part of a sentence."""
        return f"{self.pool} has {gib(self.available)} per rank, and weights and processes take {gib(self.taken)}"


class Load(NamedTuple):
    """The memory that one rank takes without its KV cache."""

    weights: int
    on_disk: int
    """Its share of the weight files."""
    ranks: int
    """Of all engines together."""
    activations: int = 0
    """Of one step."""


def divide_weights(weights: Weights | None, size: int, shards: int, ranks: int, activations: int = 0) -> Load:
    """Divide the weights by the ranks that share one copy; unknown weights count as 0."""
    if weights is None:
        return Load(0, 0, ranks, activations)
    return Load(weights.loaded(size) // shards, weights.on_disk // ranks, ranks, activations)


def compute_activations(geometry: Geometry, tokens: int, sequences: int, size: int, shards: int) -> int:
    """Return the bytes of one step: what one layer reads and writes for each token, and each sequence's logits.

    `shards` ranks divide heads and feed-forward parts. Logits are float32. A token uses at most eight experts,
    as in the families that vLLM serves on CPUs.
    """
    attention = 2 * (geometry.heads + geometry.kv_heads) * geometry.head_size
    feed_forward = 3 * max(geometry.intermediate, min(geometry.experts, _EXPERTS_OF_TOKEN) * geometry.expert_width)
    widths = 3 * geometry.hidden + (attention + feed_forward) // shards
    return tokens * widths * size + 4 * sequences * geometry.vocabulary


def smallest_room(facts: Facts, ranks: tuple[Rank, ...], rank_load: Load, thresholds: Thresholds) -> RankRoom:
    """Return the room of the rank with the least memory, which limits all ranks.

    Three limits apply: the rank's NUMA node, the host's available memory, and the container's limit. Weight files count
    twice against the container's limit: reading them fills page cache that is charged to the container, and vLLM's
    worker subtracts it when it checks whether the KV cache fits.
    """
    server, worker = thresholds.bytes("server_memory_gib"), thresholds.bytes("rank_memory_gib")
    rank_takes = worker + rank_load.weights + rank_load.activations
    per_rank = server // rank_load.ranks + rank_takes
    rooms = [_make_rank_room(f"NUMA node {rank.node}", rank.memory, server + rank_takes) for rank in ranks]
    rooms.append(_make_rank_room("available memory", facts.memory.available // rank_load.ranks, per_rank))
    limit = facts.cgroup.memory_limit
    if limit is not None and limit < facts.memory.total:
        available = max(0, limit - facts.cgroup.memory_used) // rank_load.ranks
        rooms.append(_make_rank_room("the container's memory limit", available, per_rank + rank_load.on_disk))
    return min(rooms, key=lambda room: room.left)


def _make_rank_room(pool: str, available: int, used_bytes: int) -> RankRoom:
    return RankRoom(max(0, available - used_bytes), pool, available, used_bytes)


def check_user_cache(model: str, setting: str, stated: str, space: int, weights: int, room: RankRoom) -> None:
    """Raise DOES_NOT_FIT for a KV cache of the user's, `space` bytes, that exceeds what the weights leave.

    Servers end after they have loaded the weights. Source: vLLM v1/worker/cpu_worker.py, determine_available_memory;
    vllm-openvino, worker/openvino_worker.py.
    """
    if space + weights <= room.available:
        return
    space_use = f"{stated} and {gib(weights)} of weights per rank; {room.pool} has {gib(room.available)}"
    most = max(0, room.left) // GIB
    fitting = {CACHE_BYTES: f"{CACHE_BYTES} {most}G fits", BLOCKS: f"lower {BLOCKS}"}
    hint = fitting.get(setting, f"{setting}={most} fits") if most else "use a smaller model, or more memory"
    raise does_not_fit(f"{model}: {space_use}", f"{hint}; without {setting} the size is chosen")


def count_block_bytes(user_flags: UserFlags, geometry: Geometry, size: int, shards: int, usual: int = BLOCK) -> int:
    """Return the bytes of the user's number of KV cache blocks (--num-gpu-blocks-override); 0 without one.

    Layers of several kinds share blocks in a way that only vLLM knows: 0 too. Source: vLLM 0.32,
    v1/core/kv_cache_utils.py, may_override_num_blocks.
    """
    if geometry.sliding_layers or geometry.states:
        return 0
    return (user_flags.number(BLOCKS) or 0) * geometry.kv_bytes(user_flags.number(BLOCK_SIZE) or usual, size, shards)


def whole_gib(room: RankRoom, share: float) -> int:
    """Return the whole GiB of a share of the room: VLLM_CPU_KVCACHE_SPACE takes no fraction."""
    return int(room.left * share) // GIB


def cache_size(room: RankRoom, share: float) -> int:
    """Return the bytes of a share of the room, in whole GiB, or in whole MiB if it is less than one GiB."""
    size = int(room.left * share)
    return size - size % (GIB if size >= GIB else MIB)


class CacheDemand(NamedTuple):
    """The requirements on the KV cache."""

    length: int
    """Tokens of the longest sequence."""
    sequences: int
    tokens: int
    """Tokens that the cores can process at a time."""


class CacheUse(NamedTuple):
    """The largest useful KV cache, and the reason."""

    space: int
    """Whole GiB."""
    because: str


def compute_useful_cache(
    geometry: Geometry, demand: CacheDemand, size: int, shards: int, server_bytes: int = 0
) -> CacheUse:
    """Return the KV cache of all sequences at full length, or of the tokens that the cores can process, if less.

    The result always has room for one full sequence, and for `server_bytes`, which the server keeps for itself.
    """
    one = geometry.kv_bytes(demand.length, size, shards)
    full = max(demand.sequences * one, one + server_bytes)
    busy = max(one + server_bytes, geometry.kv_bytes(1, size, shards) * demand.tokens)
    if full <= busy:
        return CacheUse(
            _round_up_to_gib(full), f"{demand.sequences} sequences of {demand.length} tokens need no larger KV cache"
        )
    return CacheUse(_round_up_to_gib(busy), f"the cores process no more than {demand.tokens} tokens at a time")


def _round_up_to_gib(size: int) -> int:
    return max(1, -(-size // GIB))


def find_longest_sequence(geometry: Geometry, space: int, size: int, shards: int) -> int:
    """Return the longest sequence, in whole blocks, whose KV cache fits `space` bytes; vLLM takes one block itself."""
    low, high = 0, space // BLOCK
    while low < high:  # find the largest number of blocks that fits
        middle = (low + high + 1) // 2
        if geometry.kv_bytes(middle * BLOCK, size, shards) <= space:
            low = middle
        else:
            high = middle - 1
    return max(0, low - 1) * BLOCK
