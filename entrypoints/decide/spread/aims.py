"""The choice among all splits of a model, by the user's aim. Pure.

All devices that were handed over serve. The aims differ in the number of devices that share one copy of the model:

- latency: as many as make an answer faster.
- throughput: as few as hold the model and the KV cache of all sequences, so that there are as many engines as possible.
- none: as many as have a worthwhile share of the weights to read; one for a small model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from entrypoints.core.errors import EntrypointError
from entrypoints.core.text import counted
from entrypoints.decide.records import GIB, does_not_fit, gib
from entrypoints.decide.spread.choice import (
    Choice,
    FitCase,
    choice_under,
    groups,
    has_full_length,
    held,
    is_enough,
    loaded_bytes,
)
from entrypoints.decide.spread.hosts import more_hosts
from entrypoints.decide.spread.layouts import Space, splits, way
from entrypoints.decide.spread.room import READ_FOR_LATENCY, Split
from entrypoints.request.flags import LENGTH

LATENCY, THROUGHPUT = "latency", "throughput"

_SMALL = 0.25
"""Share of a device's memory below which the weights of a whole model are not split by default: the device has room
for the KV cache of many sequences, and several engines answer more requests than one."""

_READ_BY_DEFAULT, _READ_AT_MOST = 0.05, 6 * GIB
"""Share of a device's memory that its part of the weights takes at least, and a size that is always enough.
Accelerators read all of their memory in 20 to 50 ms, so a twentieth takes 1 to 2.5 ms, and 6 GiB take the fastest ones
about 1 ms: at least as long as the all-reduces of one token."""

_LONG_ENOUGH = 0.25
"""Share of the model's own length that a group over fast links must hold, before a longer path is chosen for more."""


def choose(case: FitCase, possible: tuple[Split, ...]) -> Choice:
    """Return the split that serves the aim best. Raises DOES_NOT_FIT."""
    if case.model.weights is None and case.cache is None:
        one = possible[0]._replace(data=case.space.data or 1, engines=case.space.engines or 1)
        return Choice(one, case.room(one), case.demand.length, None)
    choices = choices_under(case, possible)
    full = [choice for choice in choices if has_full_length(case, choice)]
    if full and case.space.hosts > 1:  # hosts.over_hosts puts the best first
        return full[0]
    near = _near_and_long(case, choices)
    if full and (not near or any(way(choice.split, case.space) == 0 for choice in full)):
        return _best(case, _fastest(case, full))
    if not choices or _is_too_short(case, max(choices, key=_length)):
        raise _refusal(case, possible, choices)
    longest = max(map(_length, near or choices))
    best = _roomiest([choice for choice in near or choices if _length(choice) == longest])
    where = "no group on fast links" if near else "no number of devices"
    return best._replace(because=f"{where} fits the full length, and this one fits the longest sequence")


def _near_and_long(case: FitCase, choices: list[Choice]) -> list[Choice]:
    """Return the choices over the fastest links that hold a good part of a length that the user did not ask for."""
    if case.demand.fixed or case.demand.length is None:
        return []
    least = _LONG_ENOUGH * case.demand.length
    return [choice for choice in choices if way(choice.split, case.space) == 0 and _length(choice) >= least]


def choices_under(case: FitCase, possible: Iterable[Split]) -> list[Choice]:
    """Return the choices under those splits that leave room for a KV cache."""
    choices = (choice_under(case, split) for split in possible)
    return [choice for choice in choices if choice is not None]


def least_read(case: FitCase) -> int:
    """Return the bytes of weights that each device of a group reads at least."""
    if case.space.aim == LATENCY:
        return READ_FOR_LATENCY
    return min(_READ_AT_MOST, int(_READ_BY_DEFAULT * case.memory.total))


def is_small(case: FitCase) -> bool:
    """Return whether a copy of the model takes so little of a device that, by default, each device gets one."""
    return case.space.aim != LATENCY and loaded_bytes(case) < _SMALL * case.memory.total


def is_worthwhile(case: FitCase, split: Split) -> bool:
    """Return whether each device of a group has enough weights to read."""
    if split.world == 1 or case.rules.whole:
        return True
    return not is_small(case) and loaded_bytes(case) // split.world >= least_read(case)


# --- the aims -------------------------------------------------------------------------------------------------------


def _best(case: FitCase, fast: list[Choice]) -> Choice:
    """Return the best of the choices that have the full length."""
    enough = [choice for choice in fast if is_enough(case, choice)]
    if case.space.aim != THROUGHPUT:
        return _widest(case, enough if case.demand.asked and enough else fast)
    if not enough:
        return _closest(case, fast)
    because = f"--optimize throughput: the narrowest group that holds the weights and {_sequences(case, fast[0])}"
    best = max(enough, key=lambda choice: (groups(case, choice.split), choice.split.world))
    return best._replace(because=because)


def _fastest(case: FitCase, choices: list[Choice]) -> list[Choice]:
    """Return the choices over the fastest links; only those that use all devices, if they serve only together."""
    fast = _over_fastest_links(case, choices)
    whole = [choice for choice in fast if _used(choice) == case.space.devices]
    return whole if case.rules.whole and whole else fast


def _widest(case: FitCase, fast: list[Choice]) -> Choice:
    """Return the widest group that is worth a split; a wider one if only that has room for all sequences."""
    worthwhile = [choice for choice in fast if is_worthwhile(case, choice.split)]
    best = max(worthwhile or fast[:1], key=lambda choice: _by_width(case, choice))
    wider = [choice for choice in fast if choice.split.world > best.split.world and is_enough(case, choice)]
    if wider and (not worthwhile or not is_enough(case, best)):
        because = f"the narrowest group that holds the weights and {_sequences(case, best)}"
        return min(wider, key=lambda choice: (choice.split.world, -choice.split.data))._replace(because=because)
    latency = "--optimize latency: " if case.space.aim == LATENCY else ""
    return best._replace(because=latency + _why_widest(case, best))


def _why_widest(case: FitCase, best: Choice) -> str:
    if case.space.devices == 1:
        return "the one device that was handed over holds the model"
    if case.rules.whole:
        return "all devices of the slice serve one model, since no other process can use a part of it"
    if is_small(case) and best.split.world == 1:
        return f"the weights take less than {_SMALL:.0%} of one device, so that each device gets its own engine"
    if not is_worthwhile(case, best.split):
        return "the narrowest group that holds the model"
    return f"the widest group that leaves each device {gib(least_read(case))} of weights or more to read"


def _by_width(case: FitCase, choice: Choice) -> tuple[int, int]:
    """Return the order of groups: by their own size for latency, else first by the devices that serve."""
    split = choice.split
    return (split.tensor, split.data) if case.space.aim == LATENCY else (_used(choice), split.tensor)


def _closest(case: FitCase, fast: list[Choice]) -> Choice:
    """Return the choice with room for the most sequences, since none has room for all of them."""
    read = [choice for choice in fast if loaded_bytes(case) // choice.split.world >= READ_FOR_LATENCY]
    most = _roomiest(read or fast[:1])
    return most._replace(because=f"no split holds {_sequences(case, most)}, and this one holds the most")


def _roomiest(choices: list[Choice]) -> Choice:
    return max(choices, key=lambda choice: (choice.tokens or 0) * max(choice.split.data, choice.split.engines))


def _over_fastest_links(case: FitCase, choices: list[Choice]) -> list[Choice]:
    """Return the choices that use only the fastest links; else pipelines of the widest group and the fewest stages."""
    nearest = min(way(choice.split, case.space) for choice in choices)
    near = [choice for choice in choices if way(choice.split, case.space) == nearest]
    if nearest != 1:
        return near
    return [max(near, key=lambda choice: (choice.split.tensor, _used(choice), -choice.split.pipeline))]


def _used(choice: Choice) -> int:
    return choice.split.world * choice.split.data


def _sequences(case: FitCase, choice: Choice) -> str:
    """Return the demanded KV cache, as a part of a reason."""
    if held(case, choice) is None:
        return "a KV cache"
    default = "" if case.demand.asked else ", the stack's default,"
    return f"the KV cache of {counted(case.demand.concurrency, 'sequence')}{default} of {case.demand.usual} tokens"


# --- what does not fit ----------------------------------------------------------------------------------------------


def _length(choice: Choice) -> int:
    return choice.length or 0


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
        others = choices_under(case, splits(case.model, case.rules, without_fixed, loaded_bytes(case)))
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
    """Return the first split in a space that holds the model."""
    try:
        possible = splits(case.model, case.rules, space, loaded_bytes(case))
    except EntrypointError:
        return None
    return next((choice.split for choice in choices_under(case, possible) if has_full_length(case, choice)), None)
