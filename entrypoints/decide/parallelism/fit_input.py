"""The input of a fit: devices, the model, the user's flags, and what follows from them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.checks.findings import suggest_repair
from entrypoints.core.errors import DOES_NOT_FIT, HOST, MODEL, EntrypointError
from entrypoints.core.records import TOOL_OUTPUT, Facts
from entrypoints.core.units import GIB
from entrypoints.decide.parallelism.demand import Demand, read_demand
from entrypoints.decide.parallelism.devices import Pool, choose_pool, count_widest_island, format_numbers, free_memory
from entrypoints.decide.parallelism.extras import Extras, read_extras
from entrypoints.decide.parallelism.hosts import count_hosts, link_between
from entrypoints.decide.parallelism.memory_use import DeviceMemory, KvCache
from entrypoints.decide.parallelism.multimodal import Encoder, compute_encoder_memory, has_whole_towers, read_inputs
from entrypoints.decide.parallelism.rules import Rules, Space
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import (
    BATCHED,
    BLOCKS,
    CACHE_BYTES,
    CACHE_TYPE,
    CONTEXT,
    DATA,
    DATA_BACKEND,
    EXECUTOR,
    EXPERT,
    LOCAL,
    OFFLOAD,
    PIPELINE,
    PREFILL_CONTEXT,
    TENSOR,
    UTILISATION,
)
from entrypoints.request.vllm_flags import UserFlags

_SEVERAL_HOSTS = {
    "--data-parallel-address",
    "--data-parallel-start-rank",
    "--data-parallel-hybrid-lb",
    DATA_BACKEND,
    "--node-rank",
}
"""Flags that are set only for a server on several hosts."""


class FitCase(NamedTuple):
    """The input of a fit."""

    facts: Facts
    model: ModelFacts
    user_flags: UserFlags
    rules: Rules
    pool: Pool
    space: Space
    memory: DeviceMemory
    cache: KvCache | None
    """None if only vLLM knows the size of the model's KV cache."""
    demand: Demand
    extras: Extras = Extras()

    @property
    def loaded(self) -> int:
        """Bytes of all loaded weights; 0 if unknown."""
        return self.model.weights.loaded(self.rules.element) if self.model.weights else 0

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of the model's size."""
        return self.model.weights is None and self.cache is None


def is_known(user_flags: UserFlags, name: str) -> bool:
    """Return whether this image's vLLM has a flag."""
    return not user_flags.known or name in user_flags.known


def read_case(facts: Facts, model: ModelFacts, user_flags: UserFlags, rules: Rules) -> FitCase:
    """Collect the input of a fit. Raises HOST, MODEL, USAGE, DOES_NOT_FIT."""
    if model.problem and user_flags.number(TENSOR) is None:
        raise EntrypointError(MODEL, model.problem, f"complete the file, or set {TENSOR} yourself")
    user = _read_decimal_flag(user_flags, UTILISATION)
    pool = choose_pool(facts, user_flags.intents.devices, user or rules.usable)
    between = link_between(facts, user_flags.env, rules.link)
    space = read_space(user_flags, len(pool.devices), count_widest_island(pool.devices, facts.links), between)
    if not (rules.data and is_known(user_flags, DATA)):
        rules = rules._replace(data=False)
    if not is_known(user_flags, EXPERT):
        rules = rules._replace(expert="")
    if user_flags.number(PREFILL_CONTEXT) in (None, 1):  # else its ranks are others than the tensor-parallel ones
        rules = rules._replace(context=user_flags.number(CONTEXT) or 1)
    rules = rules._replace(has_whole_towers=has_whole_towers(user_flags))
    demand = read_demand(model, user_flags, rules.block, rules.sequences)
    step = user_flags.number(BATCHED) or min(rules.chunk, demand.length or rules.chunk)
    most = max(step, min(rules.encoder_tokens, demand.length or rules.encoder_tokens)) if rules.encoder_tokens else 0
    images = compute_encoder_memory(model, read_inputs(user_flags, step), rules.element, most)
    return FitCase(
        facts,
        model,
        user_flags,
        rules,
        pool,
        space,
        _read_device_memory(facts, pool, user_flags, rules, images),
        _make_kv_cache(model, user_flags, rules),
        demand,
        read_extras(user_flags),
    )


def read_space(user_flags: UserFlags, count: int, wide: int, between: str = "") -> Space:
    """Return the available devices and the user's parallelism. Raises USAGE."""
    expert = user_flags.flag(EXPERT)
    hosts = count_hosts(user_flags)
    several = hosts > 1 or bool(_SEVERAL_HOSTS & set(user_flags.flags))
    engines = user_flags.number(DATA)
    ray = user_flags.flag(EXECUTOR) == "ray" or bool(user_flags.variable("RAY_ADDRESS"))
    return Space(
        devices=count,
        wide=wide,
        aim=user_flags.intents.optimize,
        tensor=user_flags.number(TENSOR),
        pipeline=user_flags.number(PIPELINE),
        data=user_flags.number(LOCAL) or (engines and max(1, engines // hosts)),
        engines=engines or user_flags.number(LOCAL),
        experts=None if expert is None else expert != "False",
        nodes=several or ray,
        hosts=hosts,
        between=between,
    )


def _read_decimal_flag(user_flags: UserFlags, name: str) -> float | None:
    """Return a flag's decimal number; None if it is not set or not a number, which vLLM itself refuses."""
    try:
        return float(user_flags.flag(name) or "")
    except ValueError:
        return None


def _suggest_first_repair(facts: Facts) -> str:
    """Return what to do about the first thing that the probe could not read."""
    if not facts.failures:
        return "run `check` for what is missing"
    first = facts.failures[0]
    return suggest_repair(first) if first.expected == TOOL_OUTPUT else f"expected {first.expected}"


def _read_device_memory(facts: Facts, pool: Pool, user_flags: UserFlags, rules: Rules, images: Encoder) -> DeviceMemory:
    """Return the memory of the smallest device. Raises HOST if a device's is unknown, DOES_NOT_FIT."""
    totals = [device.memory_total or rules.memory for device in pool.devices]
    total = min((size for size in totals if size), default=0)
    if not total or not all(totals):
        why = "".join(f"; {failure.where.partition(' --')[0]}: {failure.found}" for failure in facts.failures[:3])
        devices = f"device{'s' if len(pool.devices) > 1 else ''} {format_numbers(pool.devices)}"
        raise EntrypointError(HOST, f"the memory of {devices} is unknown{why}", _suggest_first_repair(facts))
    total -= rules.driver
    user, cache = _read_decimal_flag(user_flags, UTILISATION), user_flags.number(CACHE_BYTES)
    offload = int((_read_decimal_flag(user_flags, OFFLOAD) or 0) * GIB)
    share = user if user is not None else _choose_usable_share(pool, total, rules)
    if user is not None and facts.accelerator in _CHECKED_AT_START:
        _check_share_is_free(pool, user)
    return DeviceMemory(total, share, offload, cache, user_flags.number(BLOCKS) or 0, images)


_CHECKED_AT_START = ("cuda", "rocm")
"""Accelerators of which vLLM refuses a share of memory that is not free, and whose tools count memory as it does.
Source: vLLM 0.32, v1/worker/utils.py, request_memory."""


def _check_share_is_free(pool: Pool, share: float) -> None:
    """Raise DOES_NOT_FIT if other processes hold a part of the share that the user gives to vLLM."""
    for device in pool.devices:
        free, total = free_memory(device), device.memory_total
        if free is not None and total and share * total > free:
            message = f"{UTILISATION} {share:g}: only {free / total:.3f} of device {device.number} is free"
            hint = f"lower it to {int(100 * free / total) / 100:g}, or end the processes that hold the rest"
            raise EntrypointError(DOES_NOT_FIT, message, hint)


def _choose_usable_share(pool: Pool, total: int, rules: Rules) -> float:
    """Return the share for vLLM: less if other processes hold memory, since vLLM refuses more than is free."""
    sizes = [size - rules.driver for device in pool.devices if (size := free_memory(device)) is not None]
    free = min((size for size in (*sizes, rules.free) if size is not None), default=total)
    return min(rules.usable, int(100 * free / total) / 100)


def _make_kv_cache(model: ModelFacts, user_flags: UserFlags, rules: Rules) -> KvCache | None:
    if model.geometry is None:
        return None
    kind = user_flags.flag(CACHE_TYPE) or "auto"
    element = 1 if kind.startswith(("fp8", "int8")) else rules.kv_element
    if kind == "auto" and element > 1:  # the cache has the type of the model, also float32
        element = max(element, rules.element)
    return KvCache(model.geometry, element, rules.block, user_flags.number(BATCHED) or rules.chunk, rules.context)
