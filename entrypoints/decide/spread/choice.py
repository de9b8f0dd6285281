"""What is looked at, and which of all ways to spread a model is taken. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from entrypoints.core.errors import HOST, MODEL, USAGE, EntrypointError
from entrypoints.core.records import Facts
from entrypoints.decide.records import GIB, does_not_fit, gib
from entrypoints.decide.spread.demand import LENGTH, Demand, read_demand
from entrypoints.decide.spread.devices import Pool, choose_pool, free_memory, numbers, widest
from entrypoints.decide.spread.layouts import DATA, EXPERT, TENSOR, Space, space, splits
from entrypoints.decide.spread.room import DeviceMemory, DeviceRoom, KvCache, Rules, Split, room
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags

UTILISATION = "--gpu-memory-utilization"
CACHE_BYTES = "--kv-cache-memory-bytes"
CACHE_TYPE = "--kv-cache-dtype"
BATCHED = "--max-num-batched-tokens"
OFFLOAD = "--cpu-offload-gb"

_UNKNOWN_CACHE = 0.25
"""Share of the usable memory that stays for the KV cache of a model whose cache only vLLM can tell."""


class FitCase(NamedTuple):
    """Everything that is looked at."""

    facts: Facts
    model: ModelFacts
    given: UserFlags
    rules: Rules
    pool: Pool
    there: Space
    memory: DeviceMemory
    cache: KvCache | None
    """None where only vLLM can tell what the cache takes."""
    demand: Demand

    def room(self, split: Split) -> DeviceRoom:
        """Return one device's account under a split."""
        return room(self.model, self.rules, self.memory, split)


class Choice(NamedTuple):
    """A split, and the longest sequence under it."""

    split: Split
    room: DeviceRoom
    length: int | None
    tokens: int | None


def is_known(given: UserFlags, name: str) -> bool:
    """Tell whether this image's vLLM has a flag."""
    return not given.known or name in given.known


def read_case(facts: Facts, model: ModelFacts, given: UserFlags, rules: Rules) -> FitCase:
    """Look at everything once. Raises HOST, MODEL, USAGE, DOES_NOT_FIT."""
    if model.problem and given.number(TENSOR) is None:
        raise EntrypointError(MODEL, model.problem, f"complete the file, or set {TENSOR} yourself")
    user = _utilisation(given)
    pool = choose_pool(facts, given.intents.devices, user or rules.usable)
    there = space(given, len(pool.devices), widest(pool.devices, facts.links))
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
        there,
        _memory(facts, pool, given, rules),
        _cache(model, given, rules),
        read_demand(model, given, rules.block),
    )


def _utilisation(given: UserFlags) -> float | None:
    """Return the share of memory that the user sets. Raises USAGE for one that vLLM refuses."""
    share = _decimal(given, UTILISATION)
    if share is not None and not 0 < share <= 1:
        message = f"{UTILISATION} {given.flag(UTILISATION)}: expected a share above 0, at most 1"
        raise EntrypointError(USAGE, message, "0.9 is vLLM's own")
    return share


def _decimal(given: UserFlags, name: str) -> float | None:
    """Return a flag's decimal number; what is none is vLLM's to refuse."""
    try:
        return float(given.flag(name) or "")
    except ValueError:
        return None


def _memory(facts: Facts, pool: Pool, given: UserFlags, rules: Rules) -> DeviceMemory:
    """Return what the device that offers least offers. Raises HOST where nothing tells a device's memory."""
    totals = [device.memory_total or rules.memory for device in pool.devices]
    total = min((size for size in totals if size), default=0)
    if not total or not all(totals):
        hint = next((f"expected {failure.expected}" for failure in facts.failures), "run `check` for what is lacking")
        why = "".join(f"; {failure.where.partition(' --')[0]}: {failure.found}" for failure in facts.failures[:3])
        raise EntrypointError(HOST, f"nothing tells the memory of devices {numbers(pool.devices)}{why}", hint)
    user, cache = _utilisation(given), given.number(CACHE_BYTES)
    offload = int((_decimal(given, OFFLOAD) or 0) * GIB)
    return DeviceMemory(total, user if user is not None else _share(pool, total, rules), offload, cache)


def _share(pool: Pool, total: int, rules: Rules) -> float:
    """Return the share vLLM may take: less where others hold memory, since vLLM refuses more than is free."""
    free = [memory for device in pool.devices if (memory := free_memory(device)) is not None]
    return min(rules.usable, int(100 * min(free, default=total) / total) / 100)


def _cache(model: ModelFacts, given: UserFlags, rules: Rules) -> KvCache | None:
    if model.geometry is None:
        return None
    kind = given.flag(CACHE_TYPE) or "auto"
    element = 1 if kind.startswith(("fp8", "int8")) else rules.kv_element
    return KvCache(model.geometry, element, rules.block, given.number(BATCHED) or rules.chunk)


def loaded_bytes(case: FitCase) -> int:
    """Return what all weights take when loaded; 0 where that is not known."""
    return case.model.weights.loaded(case.rules.element) if case.model.weights else 0


# --- the choice -----------------------------------------------------------------------------------------------------


def choose(case: FitCase, ways: tuple[Split, ...]) -> Choice:
    """Return the first way that holds all that is wished; else the one that comes nearest. Raises DOES_NOT_FIT."""
    if case.model.weights is None and case.cache is None:
        return Choice(ways[0], case.room(ways[0]), case.demand.length, None)
    choices = [choice for split in ways if (choice := under(case, split))]
    for choice in choices:
        if is_enough(case, choice):
            return choice
    if not choices or _is_too_short(case, max(choices, key=_length)):
        raise _refusal(case, ways, choices)
    whole = [choice for choice in choices if _length(choice) == max(map(_length, choices))]
    return max(whole, key=lambda choice: (choice.tokens or 0) * choice.split.data)


def _length(choice: Choice) -> int:
    return choice.length or 0


def under(case: FitCase, split: Split) -> Choice | None:
    """Return what a split gives; None where the weights leave no room."""
    account, length = case.room(split), case.demand.length
    if case.cache is None:
        return Choice(split, account, length, None) if account.left >= _UNKNOWN_CACHE * account.usable else None
    if account.left <= 0:
        return None
    if length is None:
        one = case.rules.shortest_context
        return Choice(split, account, None, case.cache.tokens(account.left, one, split))
    longest = case.cache.longest(account.left, length, split)
    if longest < 1:
        return None
    return Choice(split, account, longest, case.cache.tokens(account.left, longest, split))


def is_enough(case: FitCase, choice: Choice) -> bool:
    """Tell whether a choice holds the whole length and all sequences that are wished for."""
    if choice.tokens is None:
        return True
    whole = case.demand.length is None or choice.length == case.demand.length
    return whole and choice.tokens >= case.demand.tokens(choice.split.data)


def _is_too_short(case: FitCase, choice: Choice) -> bool:
    """Tell whether even the longest sequence that fits is too short to serve."""
    if choice.length is None or choice.length == case.demand.length:
        return False
    return case.demand.fixed or choice.length < case.rules.shortest_context


def _refusal(case: FitCase, ways: tuple[Split, ...], choices: list[Choice]) -> EntrypointError:
    best = max(ways, key=lambda split: case.room(split).left)
    account = max(choices, key=_length).room if choices else case.room(best)
    split = max(choices, key=_length).split if choices else best
    length = case.demand.length if case.cache else None
    need = f", {length} tokens of KV cache {gib(case.cache.bytes(length, split))}" if case.cache and length else ""
    message = f"{case.model.name}: with {split.words()}, {account.words()}{need}"
    return does_not_fit(message, "; ".join(_what_fits(case, choices)))


def _what_fits(case: FitCase, choices: list[Choice]) -> Iterator[str]:
    """Yield what would fit, the nearest first."""
    if choices:
        longest = max(map(_length, choices))
        if longest >= case.rules.shortest_context:
            yield f"{LENGTH} {longest} fits"
    free = case.there._replace(tensor=None, pipeline=None, data=None)
    if free != case.there:
        others = [
            choice for way in splits(case.model, case.rules, free, loaded_bytes(case)) if (choice := under(case, way))
        ]
        fitting = next((choice for choice in others if is_enough(case, choice)), None)
        if fitting:
            yield f"{fitting.split.words()} fits"
    if case.rules.element > 1 and not case.model.quantization:
        yield "a quantised model takes less"
    yield f"more or larger devices than {len(case.pool.devices)} of {gib(case.memory.total)}"
