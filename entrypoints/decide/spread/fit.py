"""Model and devices → devices, parallelism, lengths, memory, with every reason. Pure. What all accelerators share.

An accelerator states its `Rules` and adds its own flags. What vLLM makes of the settings was read in its
config/parallel.py, config/cache.py, v1/core/kv_cache_utils.py and v1/worker/gpu_worker.py (0.27).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from entrypoints.checks.findings import notice
from entrypoints.core.records import Device, Facts, Notice
from entrypoints.decide.records import GIB, Value, gib
from entrypoints.decide.spread.choice import (
    BATCHED,
    UTILISATION,
    Choice,
    FitCase,
    choose,
    is_enough,
    is_known,
    loaded_bytes,
    read_case,
    under,
)
from entrypoints.decide.spread.demand import LENGTH
from entrypoints.decide.spread.devices import arrange, numbers
from entrypoints.decide.spread.layouts import (
    DATA,
    EXECUTOR,
    EXPERT,
    LOCAL,
    NODES,
    PIPELINE,
    TENSOR,
    obstacle,
    splits,
    spread_because,
)
from entrypoints.decide.spread.room import Rules, Split
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags

__all__ = ["Fit", "Rules", "fit"]

SEQUENCES = "--max-num-seqs"
MOST_SEQUENCES = 1024
"""vLLM's largest own --max-num-seqs, for an API server on a large device (0.27 engine/arg_utils.py)."""


class Fit(NamedTuple):
    """What was chosen; `values` holds what the user did not set."""

    devices: tuple[Device, ...]
    """In the order of vLLM's local ranks."""
    tensor: int
    pipeline: int
    data: int
    """Engines on this host."""
    length: int | None
    """--max-model-len in force; None where only vLLM can tell."""
    sequences: int | None
    """--max-num-seqs in force; None leaves it to vLLM."""
    kv_tokens: int | None
    """That fit the KV cache of one engine, in sequences of `length`."""
    values: Mapping[str, Value]
    findings: tuple[Notice, ...] = ()


def fit(facts: Facts, model: ModelFacts, given: UserFlags, rules: Rules) -> Fit:
    """Choose all that the user did not.

    Raises HOST without a usable device or its memory, MODEL where the configuration is wrong and is needed,
    DOES_NOT_FIT, and USAGE where what the user fixed cannot be.
    """
    case = read_case(facts, model, given, rules)
    ways = splits(model, case.rules, case.there, loaded_bytes(case))
    choice = choose(case, ways)
    groups = arrange(
        case.pool.devices, facts.links, min(choice.split.tensor, len(case.pool.devices)), _groups(case, choice.split)
    )
    devices = tuple(device for group in groups for device in group)
    sequences, limited = _sequences(case, choice)
    values = {
        **_parallelism(case, choice, ways),
        **_lengths(case, choice),
        **sequences,
        **_utilisation(case),
        **_executor(case, choice.split),
    }
    mine = {name: value for name, value in values.items() if name not in given.flags and is_known(given, name)}
    chosen = mine.get(SEQUENCES)
    return Fit(
        devices,
        choice.split.tensor,
        choice.split.pipeline,
        choice.split.data,
        choice.length,
        int(str(chosen.value)) if chosen else given.number(SEQUENCES),
        choice.tokens,
        mine,
        (*case.pool.findings, *limited, *_idle(case, devices, choice.split), *_slow(case, choice.split)),
    )


def _groups(case: FitCase, split: Split) -> int:
    """Return the tensor-parallel groups on this host."""
    return max(1, min(split.pipeline * split.data, len(case.pool.devices) // split.tensor))


# --- the values -----------------------------------------------------------------------------------------------------


def _parallelism(case: FitCase, choice: Choice, ways: tuple[Split, ...]) -> dict[str, Value]:
    split = choice.split
    values = {TENSOR: Value(str(split.tensor), _because(case, choice), tuple(_instead(case, choice, ways)))}
    if split.pipeline > 1:
        because = f"tensor parallelism alone does not hold it here: {split.pipeline} stages of {split.tensor} devices"
        values[PIPELINE] = Value(str(split.pipeline), because, ("1: the stages' layers would not fit",))
    if split.data > 1:
        copy = "which share out the experts" if case.model.expert_share else "each with a whole copy"
        because = f"--optimize throughput: {split.data} engines of {split.world} devices, {copy}"
        instead = (f"1: {split.world * (split.data - 1)} devices would stay idle",)
        values[DATA] = Value(str(split.data), because, instead)
    if split.experts and case.there.experts is None:
        values[EXPERT] = Value(value=True, because=spread_because(case.model, split.tensor * split.engines))
    return values


def _because(case: FitCase, choice: Choice) -> str:
    split, account = choice.split, choice.room
    if case.model.weights is None and case.cache is None:
        return f"{case.model.unknown}, so nothing is known that could be split; set -tp to use more devices"
    if case.cache is None:
        return f"{account.words()}; {case.model.unknown}"
    first = (
        "--optimize latency: the most devices that answer one request faster"
        if _is_latency(case)
        else "the fewest devices that hold it"
    )
    if choice.length != case.demand.length:
        first = "no way holds the full length, this one the longest"
    length = choice.length or case.rules.shortest_context
    if case.model.estimated and case.model.unknown:
        first = f"{first}; {case.model.unknown}"
    return f"{first}; {account.words()}, one sequence of {length} tokens {gib(case.cache.bytes(length, split))}"


def _is_latency(case: FitCase) -> bool:
    return case.there.aim == "latency"


def _instead(case: FitCase, choice: Choice, ways: tuple[Split, ...]) -> Iterator[str]:
    """Yield why not the next smaller and the next larger number of devices."""
    tensor = choice.split.tensor
    smaller, larger = tensor // 2, 2 * tensor
    if smaller:
        yield f"{smaller}: {_why_not(case, smaller, ways)}"
    if larger <= len(case.pool.devices):
        yield f"{larger}: {_why_not(case, larger, ways)}"


def _why_not(case: FitCase, tensor: int, ways: tuple[Split, ...]) -> str:
    why = obstacle(case.model, case.rules, tensor, case.there.experts)
    if why:
        return why
    way = next((split for split in ways if split.tensor == tensor and split.pipeline == 1), None)
    if way is None:
        return "not with what you set" if case.there.pipeline or case.there.data else "nothing to split by"
    choice = under(case, way)
    if choice is None or (case.cache and not is_enough(case, choice)):
        return f"too little: {case.room(way).words()}, {_missing(case, choice)}"
    if tensor > case.there.wide:
        return f"the group would cross a slower link: only {case.there.wide} devices are joined by the fastest"
    if _is_latency(case):
        return "slower answers" if tensor < case.there.wide else f"less than {gib(GIB)} of weights for each rank"
    return "not needed, and every token would wait for more devices; --optimize latency prefers it where it helps"


def _missing(case: FitCase, choice: Choice | None) -> str:
    if choice is None:
        return "nothing is left for the KV cache"
    if choice.length != case.demand.length:
        return f"which leaves {choice.length} tokens of {case.demand.length}"
    return f"which leaves {choice.tokens} tokens of {case.demand.tokens(choice.split.data)}"


def _lengths(case: FitCase, choice: Choice) -> dict[str, Value]:
    length, wanted = choice.length, case.demand.length
    if length is None or case.cache is None or wanted is None or case.demand.left_to_vllm:
        return {}
    if length == wanted:
        return _wished_length(case, length) if case.demand.wished else {}
    need = gib(case.cache.bytes(wanted, choice.split))
    because = (
        f"one sequence of {wanted} tokens needs {need} of KV cache on each device, {gib(choice.room.left)} are left"
    )
    return {LENGTH: Value(str(length), because, (f"{wanted}: vLLM would refuse to start",))}


def _wished_length(case: FitCase, length: int) -> dict[str, Value]:
    most = case.model.geometry.max_length if case.model.geometry else None
    longer = (f"{most}, the model's own: one sequence could take the KV cache of many",) if most else ()
    return {LENGTH: Value(str(length), case.demand.because, (*longer, "less: the longest request would be refused"))}


def _sequences(case: FitCase, choice: Choice) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Choose --max-num-seqs from the wished concurrency, and say where the KV cache holds fewer."""
    wished, engines = case.given.intents.concurrency, choice.split.data
    if wished is None:
        return _states(case, choice), ()
    each = -(-wished // engines)
    typical, step = case.demand.typical, case.given.number(BATCHED) or case.rules.chunk
    held = max(1, choice.tokens // typical) if choice.tokens is not None and typical else each
    because = f"--concurrency {wished}" + (f" over {engines} engines" if engines > 1 else "")
    if min(held, step) >= each:
        both = ("more: nobody asked for it", "fewer: requests would wait while the KV cache has room")
        return {SEQUENCES: Value(str(each), because, both)}, ()
    fewer = min(held, step)
    because, instead = _fewer(case, held, step, each)
    queued = notice("PLAN-026", f"{fewer * engines} at a time", f"{wished} at a time", because=because)
    return {SEQUENCES: Value(str(fewer), because, (instead,))}, (queued,)


def _fewer(case: FitCase, held: int, step: int, each: int) -> tuple[str, str]:
    """Return why fewer sequences run than were wished for, and why not all of them."""
    if step < held:
        because = f"a step computes {step} tokens, and every running sequence takes one"
        return because, f"{each}: vLLM refuses to start"
    because = f"the KV cache holds {held} sequences of {case.demand.typical} tokens, the mean of the ranges"
    return because, f"{each}: vLLM would preempt running requests"


def _states(case: FitCase, choice: Choice) -> dict[str, Value]:
    """Limit the sequences of a model whose layers keep a state: each takes it whole, and vLLM refuses to run short."""
    if case.cache is None or not case.cache.geometry.states:
        return {}
    one = case.cache.bytes(1, choice.split)
    held = max(1, choice.room.left // one)
    if held >= MOST_SEQUENCES:
        return {}
    because = f"each sequence keeps a state of {one >> 20} MiB on each device, whatever its length: {held} fit"
    return {SEQUENCES: Value(str(held), because, (f"up to {MOST_SEQUENCES}, vLLM's own: it would refuse to start",))}


def _utilisation(case: FitCase) -> dict[str, Value]:
    if case.memory.cache is not None:
        return {}
    share, total = case.memory.share, case.memory.total
    rest = gib(total * (1 - share))
    because = f"of {gib(total)}, {rest} stay free for the driver and what vLLM does not count"
    more = "more: another library's allocation would end the server"
    if share < case.rules.usable:
        because = f"others hold memory of these devices: {share:.0%} is free, and vLLM refuses to start with more"
        more = f"{case.rules.usable:g}: more than is free"
    return {UTILISATION: Value(f"{share:g}", because, (more, "less: the KV cache would hold fewer tokens"))}


def _executor(case: FitCase, split: Split) -> dict[str, Value]:
    kind, because = "mp", f"{split.world} worker processes on one host"
    if split.world == 1:
        kind, because = "uni", "one device: the engine's own process runs it, with no message between processes"
    elif split.world > len(case.pool.devices):
        ours = case.given.flag(NODES) is not None
        kind, because = ("mp", f"{NODES}: vLLM's own launcher") if ours else ("ray", "one engine over several hosts")
    return {EXECUTOR: Value(kind, because)} if kind in case.rules.executors else {}


# --- what is to be said ---------------------------------------------------------------------------------------------


def _idle(case: FitCase, devices: tuple[Device, ...], split: Split) -> Iterator[Notice]:
    """Say which devices nothing runs on, and how they would be used."""
    idle = tuple(device for device in case.pool.devices if device not in devices)
    if not idle or LOCAL in case.given.flags:
        return
    yield notice("PLAN-025", numbers(idle), f"{split.words()} needs {len(devices)}", count=str(len(idle)))


def _slow(case: FitCase, split: Split) -> Iterator[Notice]:
    wide = case.there.wide
    if split.tensor > wide:
        expected = f"at most {wide} devices, which the fastest links join"
        yield notice("PLAN-027", split.words(), expected, wide=str(wide))
