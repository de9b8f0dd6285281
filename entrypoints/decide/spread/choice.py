"""The input of a fit, and what a split of the model allows. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.core.errors import HOST, MODEL, EntrypointError
from entrypoints.core.records import Facts
from entrypoints.decide.records import GIB
from entrypoints.decide.spread.demand import Demand, read_demand
from entrypoints.decide.spread.devices import Pool, choose_pool, free_memory, numbers, widest
from entrypoints.decide.spread.hosts import link_between
from entrypoints.decide.spread.layouts import Space, read_space
from entrypoints.decide.spread.room import DeviceMemory, DeviceRoom, KvCache, Rules, Split, room
from entrypoints.decide.spread.towers import read_inputs
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import (
    BATCHED,
    CACHE_BYTES,
    CACHE_TYPE,
    DATA,
    EXPERT,
    OFFLOAD,
    TENSOR,
    UTILISATION,
)
from entrypoints.request.vllm_flags import UserFlags

_UNKNOWN_CACHE = 0.25
"""Share of the usable memory reserved for the KV cache of a model whose cache size only vLLM knows."""


class FitCase(NamedTuple):
    """The input of a fit."""

    facts: Facts
    model: ModelFacts
    given: UserFlags
    rules: Rules
    pool: Pool
    space: Space
    memory: DeviceMemory
    cache: KvCache | None
    """None if only vLLM knows the size of the model's KV cache."""
    demand: Demand

    def room(self, split: Split) -> DeviceRoom:
        """Return how one device's memory is used under a split."""
        return room(self.model, self.rules, self.memory, split)


class Choice(NamedTuple):
    """A split, and the sequence length and tokens that it allows."""

    split: Split
    room: DeviceRoom
    length: int | None
    tokens: int | None
    because: str = ""
    """Why it was chosen."""


def is_known(given: UserFlags, name: str) -> bool:
    """Return whether this image's vLLM has a flag."""
    return not given.known or name in given.known


def read_case(facts: Facts, model: ModelFacts, given: UserFlags, rules: Rules) -> FitCase:
    """Collect the input of a fit. Raises HOST, MODEL, USAGE, DOES_NOT_FIT."""
    if model.problem and given.number(TENSOR) is None:
        raise EntrypointError(MODEL, model.problem, f"complete the file, or set {TENSOR} yourself")
    user = _decimal(given, UTILISATION)
    pool = choose_pool(facts, given.intents.devices, user or rules.usable)
    between = link_between(facts, given.env, rules.link)
    space = read_space(given, len(pool.devices), widest(pool.devices, facts.links), between)
    if not (rules.data and is_known(given, DATA)):
        rules = rules._replace(data=False)
    if not is_known(given, EXPERT):
        rules = rules._replace(expert="")
    demand = read_demand(model, given, rules.block, rules.sequences)
    step = given.number(BATCHED) or min(rules.chunk, demand.length or rules.chunk)
    return FitCase(
        facts,
        model,
        given,
        rules,
        pool,
        space,
        _memory(facts, pool, given, rules, step),
        _cache(model, given, rules),
        demand,
    )


def _decimal(given: UserFlags, name: str) -> float | None:
    """Return a flag's decimal number; None if it is not set or not a number, which vLLM itself refuses."""
    try:
        return float(given.flag(name) or "")
    except ValueError:
        return None


def _memory(facts: Facts, pool: Pool, given: UserFlags, rules: Rules, step: int) -> DeviceMemory:
    """Return the memory of the smallest device, for steps of so many tokens. Raises HOST if a device's is unknown."""
    totals = [device.memory_total or rules.memory for device in pool.devices]
    total = min((size for size in totals if size), default=0)
    if not total or not all(totals):
        hint = f"expected {facts.failures[0].expected}" if facts.failures else "run `check` for what is missing"
        why = "".join(f"; {failure.where.partition(' --')[0]}: {failure.found}" for failure in facts.failures[:3])
        raise EntrypointError(HOST, f"the memory of devices {numbers(pool.devices)} is unknown{why}", hint)
    user, cache = _decimal(given, UTILISATION), given.number(CACHE_BYTES)
    offload = int((_decimal(given, OFFLOAD) or 0) * GIB)
    inputs = read_inputs(given, step)
    return DeviceMemory(total, user if user is not None else _share(pool, total, rules), offload, cache, inputs)


def _share(pool: Pool, total: int, rules: Rules) -> float:
    """Return the share for vLLM: less if other processes hold memory, since vLLM refuses more than is free."""
    sizes = [free_memory(device) for device in pool.devices]
    free = min((size for size in sizes if size is not None), default=total)
    return min(rules.usable, int(100 * free / total) / 100)


def _cache(model: ModelFacts, given: UserFlags, rules: Rules) -> KvCache | None:
    if model.geometry is None:
        return None
    kind = given.flag(CACHE_TYPE) or "auto"
    element = 1 if kind.startswith(("fp8", "int8")) else rules.kv_element
    return KvCache(model.geometry, element, rules.block, given.number(BATCHED) or rules.chunk)


def loaded_bytes(case: FitCase) -> int:
    """Return the bytes of all loaded weights; 0 if unknown."""
    return case.model.weights.loaded(case.rules.element) if case.model.weights else 0


# --- one split ------------------------------------------------------------------------------------------------------


def choice_under(case: FitCase, split: Split) -> Choice | None:
    """Return the length and tokens under a split; None if the weights leave no room."""
    room, length = case.room(split), case.demand.length
    if case.cache is None:
        if room.left < _UNKNOWN_CACHE * room.usable:
            return None
        return Choice(split, room, length, None)
    if room.left <= 0:
        return None
    if length is None:
        return Choice(split, room, None, case.cache.tokens(room.left, case.rules.shortest_context, split))
    longest = case.cache.longest(room.left, length, split)
    if longest < 1:
        return None
    return Choice(split, room, longest, case.cache.tokens(room.left, longest, split))


def has_full_length(case: FitCase, choice: Choice) -> bool:
    """Return whether a choice has the demanded length."""
    return case.demand.length is None or choice.tokens is None or choice.length == case.demand.length


def held(case: FitCase, choice: Choice) -> int | None:
    """Return the number of usual sequences that one engine's KV cache holds; None if only vLLM knows."""
    if case.cache is None or choice.tokens is None:
        return None
    one = case.cache.bytes(case.demand.usual, choice.split)
    return max(0, choice.room.left) // one if one else demanded(case, choice.split)


def groups(case: FitCase, split: Split) -> int:
    """Return the engines of all hosts; where a server runs only one, the servers that the devices are enough for."""
    return max(split.data, split.engines) if case.rules.data else max(1, case.space.devices // split.world)


def demanded(case: FitCase, split: Split) -> int:
    """Return the sequences that one engine runs at a time; further servers share only the stack's default."""
    engines = max(split.data, split.engines)
    return case.demand.each(engines if case.demand.asked else groups(case, split))


def is_enough(case: FitCase, choice: Choice) -> bool:
    """Return whether a choice has the full length, and room for all sequences that run at a time."""
    sequences = held(case, choice)
    return has_full_length(case, choice) and (sequences is None or sequences >= demanded(case, choice.split))
