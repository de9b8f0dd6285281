"""The memory of vLLM's CPU ranks: weights, the KV cache, and what is left. Pure.

Sources: vLLM 0.32's platforms/cpu.py (CpuPlatform.get_device_total_memory) and v1/worker/cpu_worker.py
(CPUWorker.init_device, determine_available_memory).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.core.records import Use, Value
from entrypoints.core.units import GIB
from entrypoints.decide.cpu import intents
from entrypoints.decide.cpu.binding import Layout
from entrypoints.decide.cpu.rank_memory import (
    BLOCK,
    CacheDemand,
    CacheUse,
    Load,
    RankRoom,
    cache_size,
    check_user_cache,
    compute_activations,
    compute_useful_cache,
    count_block_bytes,
    divide_weights,
    find_longest_sequence,
    smallest_room,
)
from entrypoints.decide.decision_input import Case, element_bytes
from entrypoints.decide.parallelism.demand import Demand, read_demand
from entrypoints.decide.parallelism.extras import read_extras
from entrypoints.decide.parallelism.multimodal import compute_encoder_memory, read_inputs
from entrypoints.decide.parallelism.rules import Split
from entrypoints.decide.records import does_not_fit, gib
from entrypoints.model.geometry import Geometry
from entrypoints.request.flags import BLOCKS, CACHE_BYTES, LENGTH, UTILISATION
from entrypoints.request.vllm_flags import UserFlags, parse_count

KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"


def choose_memory(case: Case, layout: Layout, size: int) -> dict[str, Value]:
    """Choose the KV cache's size, and a shorter --max-model-len only if one full sequence would not fit."""
    user_flags, model = case.user_flags, case.model
    user = _read_user_cache(user_flags)
    if user is None and user_flags.flag(UTILISATION):
        _check_user_share(case, layout)
        return {}  # the user chose vLLM's own way of sizing the cache; the variable would override it
    if user is None and model.problem:
        hint = f"complete the file, or set {KV_SPACE} (GiB) and -tp yourself"
        raise EntrypointError(MODEL, model.problem, hint)
    geometry = model.geometry
    if user is not None:
        weights = _compute_layout_load(case, layout, size).weights
        check_user_cache(
            model.name, user.setting, user.stated, user.bytes, weights, find_layout_room(case, layout, size)
        )
        return _choose_shorter_length(case, layout, size, user.bytes, geometry) if geometry else {}
    room = find_layout_room(case, layout, size)
    if BLOCKS in user_flags.flags and geometry:
        space = count_block_bytes(user_flags, geometry, kv_element_bytes(case, size), layout.tensor)
        weights = _compute_layout_load(case, layout, size).weights
        check_user_cache(model.name, BLOCKS, user_flags.flags[BLOCKS].given, space, weights, room)
    share = kv_share(case)
    smallest = _smallest_cache(case, layout, size)
    most = cache_size(room, share)
    if most < smallest:
        raise _does_not_fit(case, room, size, smallest)
    because = f"{room.describe()}; {share:.0%} of the remaining {gib(room.left)} is for the KV cache"
    if geometry is None:
        return _format_cache_setting(most, f"{because}; {model.unknown}")
    use = _compute_cache_of_layout(case, layout, size, geometry)
    if use.space * GIB < most:
        instead = (f"{most // GIB}: would fit, but allocating it only delays the start",)
        return {KV_SPACE: Value(str(use.space), f"{use.because}; {room.describe()}", instead)}
    return _format_cache_setting(most, because) | _choose_shorter_length(case, layout, size, most, geometry)


class _UserCache(NamedTuple):
    """The size of a rank's KV cache that the user set."""

    setting: str
    stated: str
    bytes: int


def _read_user_cache(user_flags: UserFlags) -> _UserCache | None:
    """Return the user's size, of which the variable wins (platforms/cpu.py); None without one."""
    space, stated = user_flags.variable(KV_SPACE), user_flags.number(CACHE_BYTES)
    if space is not None:
        return _UserCache(KV_SPACE, f"{KV_SPACE}={space}", parse_count(space, KV_SPACE) * GIB)
    return None if stated is None else _UserCache(CACHE_BYTES, user_flags.flags[CACHE_BYTES].given, stated)


def _check_user_share(case: Case, layout: Layout) -> None:
    """Raise DOES_NOT_FIT for a share of a node's memory that exceeds what is available there.

    Source: v1/worker/cpu_worker.py, __init__.
    """
    share, limit = _user_share(case), case.facts.cgroup.memory_limit
    for node in case.facts.nodes:
        total = min(node.memory_total, limit or node.memory_total)
        if node.id in {rank.node for rank in layout.ranks} and total * share > node.memory_free:
            most = int(100 * node.memory_free / total) / 100
            share_use = f"{UTILISATION} {share:g} is {gib(total * share)} of NUMA node {node.id}"
            hint = f"{UTILISATION} {most:g} fits; without {UTILISATION} the size is chosen"
            raise does_not_fit(f"{case.model.name}: {share_use}, which has {gib(node.memory_free)} available", hint)


def _format_cache_setting(size: int, because: str) -> dict[str, Value]:
    """Set the KV cache's size; the variable takes whole GiB only."""
    if size >= GIB:
        return {KV_SPACE: Value(str(size // GIB), because)}
    return {CACHE_BYTES: Value(str(size), because, (f"{KV_SPACE}: takes whole GiB only",))}


def _smallest_cache(case: Case, layout: Layout, size: int) -> int:
    """Return the bytes of the smallest useful KV cache; 1 GiB if this vLLM or what is known allows no fraction."""
    options, geometry = case.user_flags.known, case.model.geometry
    if geometry is None or (options and CACHE_BYTES not in options):
        return GIB
    shortest = case.thresholds.whole("shortest_context") + BLOCK  # vLLM takes one block itself
    return min(GIB, geometry.kv_bytes(shortest, kv_element_bytes(case, size), layout.tensor))


def find_layout_room(case: Case, layout: Layout, size: int) -> RankRoom:
    """Return the memory of the rank that has the least left for its KV cache."""
    return smallest_room(case.facts, layout.ranks, _compute_layout_load(case, layout, size), case.thresholds)


def _compute_layout_load(case: Case, layout: Layout, size: int) -> Load:
    tokens = intents.step_tokens(case.user_flags, layout.shards)
    sequences = intents.count_running_sequences(case.user_flags, layout.shards, layout.data)
    geometry = case.model.geometry
    step = compute_activations(geometry, tokens, sequences, size, layout.tensor) if geometry else 0
    towers = compute_encoder_memory(case.model, read_inputs(case.user_flags, tokens), size)
    step = max(step, towers.activations) + towers.cache
    extras, split = read_extras(case.user_flags), Split(layout.tensor)
    share = layout.tensor / layout.shards  # of the layers, in each stage of a pipeline
    step += extras.draft_bytes(case.model, layout.tensor, size) + extras.adapter_bytes(case.model, split, size, share)
    return divide_weights(case.model.weights, size, layout.shards, len(layout.ranks), step)


def kv_share(case: Case) -> float:
    """Return the share of a rank's remaining memory that its KV cache may take."""
    return case.thresholds.number("kv_memory_share" if case.model.weights else "kv_share_of_unknown_model")


def read_required_demand(case: Case) -> Demand:
    """Return the required length and concurrency. Raises DOES_NOT_FIT."""
    return read_demand(case.model, case.user_flags, BLOCK)


def kv_element_bytes(case: Case, size: int) -> int:
    """Return the bytes of one number in the KV cache."""
    return 1 if (case.user_flags.flag("--kv-cache-dtype") or "").startswith("fp8") else size


def _compute_cache_of_layout(case: Case, layout: Layout, size: int, geometry: Geometry) -> CacheUse:
    length = read_required_demand(case).length
    if length is None:
        return CacheUse(1 << 40, "")
    sequences = intents.count_running_sequences(case.user_flags, layout.shards, layout.data)
    cores = sum(len(rank.cores) for rank in layout.ranks) // layout.data or 1
    tokens = cores * case.thresholds.whole("kv_tokens_per_core")
    kv_size, demand = kv_element_bytes(case, size), CacheDemand(length, sequences, tokens)
    block = geometry.kv_bytes(BLOCK, kv_size, layout.tensor)
    return compute_useful_cache(geometry, demand, kv_size, layout.tensor, block)


def _choose_shorter_length(case: Case, layout: Layout, size: int, space: int, geometry: Geometry) -> dict[str, Value]:
    """Return a shorter --max-model-len if one full sequence does not fit in `space` bytes. Raises DOES_NOT_FIT."""
    length = read_required_demand(case).length
    kv_size = kv_element_bytes(case, size)
    longest = find_longest_sequence(geometry, space, kv_size, layout.tensor)
    if length is None or length <= longest:
        return {}
    need = gib(geometry.kv_bytes(length, kv_size, layout.tensor))
    if read_required_demand(case).left_to_vllm:
        return {}
    if read_required_demand(case).fixed or longest < case.thresholds.whole("shortest_context"):
        raise does_not_fit(
            f"{case.model.name}: {length} tokens need {need} of KV cache per rank, {gib(space)} are available",
            f"--max-model-len {longest} fits; or use an fp8 KV cache (--kv-cache-dtype fp8_e5m2), or more memory",
        )
    because = (
        f"one sequence of the model's {length} tokens needs {need} of KV cache, and vLLM keeps one block more;"
        f" {gib(space)} are available"
    )
    instead = f"{length}: vLLM would refuse to start, or never run a sequence of this length"
    return {LENGTH: Value(str(longest), because, (instead,))}


def _does_not_fit(case: Case, room: RankRoom, size: int, smallest: int) -> EntrypointError:
    need = room.taken + smallest / kv_share(case)
    smaller = "a quantised model" if size == element_bytes("bfloat16") else "--dtype bfloat16, or a quantised model"
    return does_not_fit(
        f"{case.model.name}: needs {gib(need)} per rank: weights and processes take {gib(room.taken)}, and the smallest"
        f" useful KV cache takes {gib(smallest)}; {room.pool} has {gib(room.available)}",
        f"possible: {gib(need - room.available)} more memory per rank, {smaller}",
    )


def list_rank_uses(case: Case, layout: Layout, size: int, memory: Mapping[str, Value]) -> Iterator[Use]:
    """Yield how each rank uses its part of the memory of its NUMA node."""
    totals = {node.id: node.memory_total for node in case.facts.nodes}
    homes = [rank.node for rank in layout.ranks]
    load = _compute_layout_load(case, layout, size)
    cache = intents.effective_space(memory, case.user_flags, KV_SPACE) or 0
    server, worker = case.thresholds.bytes("server_memory_gib"), case.thresholds.bytes("rank_memory_gib")
    other_bytes = server // len(homes) + worker + load.activations
    length = int(str(memory[LENGTH].value)) if LENGTH in memory else read_required_demand(case).length or 0
    for number, home in enumerate(homes):
        node = totals.get(home, case.facts.memory.total)
        share = _user_share(case)
        cache_bytes = max(0, int(node * share) - worker - load.weights - load.activations) if share else cache
        total, tokens = node // homes.count(home), _count_cache_tokens(case, layout, size, cache_bytes, length)
        yield Use(home, number // layout.shards, total, load.weights, other_bytes, cache_bytes, length, tokens)


def _count_cache_tokens(case: Case, layout: Layout, size: int, cache_bytes: int, length: int) -> int:
    """Return the tokens that a rank's KV cache holds in sequences of this length; 0 if only vLLM knows."""
    geometry = case.model.geometry
    one = geometry.kv_bytes(length, kv_element_bytes(case, size), layout.tensor) if geometry else 0
    return cache_bytes * length // one if one else 0


def _user_share(case: Case) -> float:
    """Return --gpu-memory-utilization: vLLM's worker takes this share of its node, less what it consumed by then."""
    set_otherwise = case.user_flags.flag(CACHE_BYTES) or case.user_flags.variable(KV_SPACE)
    return 0.0 if set_otherwise else float(case.user_flags.flag(UTILISATION) or 0)
