"""The input of a fit, and the choice among all splits of a model. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from entrypoints.core.errors import HOST, MODEL, EntrypointError
from entrypoints.core.records import Facts
from entrypoints.decide.records import GIB, does_not_fit, gib
from entrypoints.decide.spread.demand import Demand, read_demand
from entrypoints.decide.spread.devices import Pool, choose_pool, free_memory, numbers, widest
from entrypoints.decide.spread.hosts import link_between, more_hosts
from entrypoints.decide.spread.layouts import Space, read_space, splits
from entrypoints.decide.spread.room import DeviceMemory, DeviceRoom, KvCache, Rules, Split, room
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import (
    BATCHED,
    CACHE_BYTES,
    CACHE_TYPE,
    DATA,
    EXPERT,
    LENGTH,
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
    return FitCase(
        facts,
        model,
        given,
        rules,
        pool,
        space,
        _memory(facts, pool, given, rules),
        _cache(model, given, rules),
        read_demand(model, given, rules.block),
    )


def _decimal(given: UserFlags, name: str) -> float | None:
    """Return a flag's decimal number; None if it is not set or not a number, which vLLM itself refuses."""
    try:
        return float(given.flag(name) or "")
    except ValueError:
        return None


def _memory(facts: Facts, pool: Pool, given: UserFlags, rules: Rules) -> DeviceMemory:
    """Return the memory of the smallest device. Raises HOST if a device's memory is unknown."""
    totals = [device.memory_total or rules.memory for device in pool.devices]
    total = min((size for size in totals if size), default=0)
    if not total or not all(totals):
        hint = f"expected {facts.failures[0].expected}" if facts.failures else "run `check` for what is missing"
        why = "".join(f"; {failure.where.partition(' --')[0]}: {failure.found}" for failure in facts.failures[:3])
        raise EntrypointError(HOST, f"the memory of devices {numbers(pool.devices)} is unknown{why}", hint)
    user, cache = _decimal(given, UTILISATION), given.number(CACHE_BYTES)
    offload = int((_decimal(given, OFFLOAD) or 0) * GIB)
    return DeviceMemory(total, user if user is not None else _share(pool, total, rules), offload, cache)


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


# --- the choice -----------------------------------------------------------------------------------------------------


def choose(case: FitCase, possible: tuple[Split, ...]) -> Choice:
    """Return the first split that meets the demand, else the closest one. Raises DOES_NOT_FIT."""
    if case.model.weights is None and case.cache is None:
        return Choice(possible[0], case.room(possible[0]), case.demand.length, None)
    choices = _choices(case, possible)
    for choice in choices:
        if is_enough(case, choice):
            return choice
    if not choices or _is_too_short(case, max(choices, key=_length)):
        raise _refusal(case, possible, choices)
    longest = max(map(_length, choices))
    with_longest = [choice for choice in choices if _length(choice) == longest]
    return max(with_longest, key=lambda choice: (choice.tokens or 0) * max(choice.split.data, choice.split.engines))


def _choices(case: FitCase, possible: tuple[Split, ...]) -> list[Choice]:
    """Return the choices under those splits that leave room for a KV cache."""
    choices = (choice_under(case, split) for split in possible)
    return [choice for choice in choices if choice is not None]


def _length(choice: Choice) -> int:
    return choice.length or 0


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


def is_enough(case: FitCase, choice: Choice) -> bool:
    """Return whether a choice has the full length and room for all required sequences."""
    if choice.tokens is None:
        return True
    full_length = case.demand.length is None or choice.length == case.demand.length
    return full_length and choice.tokens >= case.demand.tokens(max(choice.split.data, choice.split.engines))


def _is_too_short(case: FitCase, choice: Choice) -> bool:
    """Return whether the sequence length is too short to serve."""
    if choice.length is None or choice.length == case.demand.length:
        return False
    return case.demand.fixed or choice.length < case.rules.shortest_context


def _refusal(case: FitCase, possible: tuple[Split, ...], choices: list[Choice]) -> EntrypointError:
    best = max(possible, key=lambda split: case.room(split).left)
    split = max(choices, key=_length).split if choices else best
    length, need = case.demand.length, ""
    if case.cache and length:
        need = f"; the KV cache of {length} tokens takes {gib(case.cache.bytes(length, split))}"
    message = f"{case.model.name}: with {split.as_flags()}, {case.room(split).describe()}{need}"
    return does_not_fit(message, "; ".join(_what_fits(case, choices)))


def _what_fits(case: FitCase, choices: list[Choice]) -> Iterator[str]:
    """Yield changes that would make the model fit, the smallest change first."""
    if choices:
        longest = max(map(_length, choices))
        if longest >= case.rules.shortest_context:
            yield f"{LENGTH} {longest} fits"
    without_fixed = case.space._replace(tensor=None, pipeline=None, data=None)
    if without_fixed != case.space:
        others = _choices(case, splits(case.model, case.rules, without_fixed, loaded_bytes(case)))
        fitting = next((choice for choice in others if is_enough(case, choice)), None)
        if fitting:
            yield f"{fitting.split.as_flags()} fits"
    if case.rules.element > 1 and not case.model.quantization:
        yield "a quantised model takes less memory"
    hosts = more_hosts(case.space, lambda space: _fitting(case, space)) if case.rules.ways else ""
    if hosts:
        yield hosts
    yield f"use more or larger devices than {len(case.pool.devices)} of {gib(case.memory.total)}"


def _fitting(case: FitCase, space: Space) -> Split | None:
    """Return the first split in a space that meets the demand."""
    try:
        possible = splits(case.model, case.rules, space, loaded_bytes(case))
    except EntrypointError:
        return None
    return next((choice.split for choice in _choices(case, possible) if is_enough(case, choice)), None)
