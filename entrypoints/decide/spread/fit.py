"""The choice of devices, parallelism, lengths and memory that all accelerators share, with reasons. Pure.

Each accelerator gives its `Rules` and adds its own settings. Sources: vLLM 0.27's config/parallel.py, config/cache.py,
v1/core/kv_cache_utils.py and v1/worker/gpu_worker.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from entrypoints.checks.findings import notice
from entrypoints.core.records import Device, Facts, Notice, Use, Value
from entrypoints.core.text import counted
from entrypoints.decide.records import gib
from entrypoints.decide.spread.aims import LATENCY, THROUGHPUT, choose, is_small, is_worthwhile, least_read
from entrypoints.decide.spread.choice import (
    Choice,
    FitCase,
    choice_under,
    demanded,
    has_full_length,
    held,
    is_enough,
    is_known,
    loaded_bytes,
    read_case,
)
from entrypoints.decide.spread.devices import arrange, numbers
from entrypoints.decide.spread.hosts import crosses, host_values
from entrypoints.decide.spread.layouts import splits
from entrypoints.decide.spread.obstacles import obstacle, spread_because
from entrypoints.decide.spread.room import Rules, Split
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import (
    BATCHED,
    DATA,
    EXECUTOR,
    EXPERT,
    LENGTH,
    LOCAL,
    NODES,
    PIPELINE,
    SEQUENCES,
    TENSOR,
    UTILISATION,
)
from entrypoints.request.vllm_flags import UserFlags

__all__ = ["Fit", "Rules", "fit"]

MOST_SEQUENCES = 1024
"""vLLM's largest default of --max-num-seqs: an API server on a large device (0.27 engine/arg_utils.py)."""


class Fit(NamedTuple):
    """The chosen devices, parallelism and lengths; `values` contains the settings that the user did not set."""

    devices: tuple[Device, ...]
    """In the order of vLLM's local ranks."""
    tensor: int
    pipeline: int
    data: int
    """Engines on this host."""
    length: int | None
    """Effective --max-model-len; None if only vLLM knows it."""
    sequences: int | None
    """Effective --max-num-seqs; None leaves it to vLLM."""
    kv_tokens: int | None
    """Tokens that fit in one engine's KV cache, in sequences of `length`."""
    values: Mapping[str, Value]
    findings: tuple[Notice, ...] = ()
    uses: tuple[Use, ...] = ()
    """How the memory of each chosen device is used."""
    pool: tuple[Device, ...] = ()
    """All devices that may serve."""


def fit(facts: Facts, model: ModelFacts, given: UserFlags, rules: Rules) -> Fit:
    """Choose every setting that the user did not set.

    Raises HOST without a usable device or its memory, MODEL if the model's configuration is needed and invalid,
    DOES_NOT_FIT, and USAGE if the user's settings are impossible.
    """
    case = read_case(facts, model, given, rules)
    possible = splits(model, case.rules, case.space, loaded_bytes(case))
    choice = choose(case, possible)
    size = min(choice.split.tensor, len(case.pool.devices))
    groups = arrange(case.pool.devices, facts.links, size, _groups(case, choice.split))
    devices = tuple(device for group in groups for device in group)
    sequences, limited = _sequences(case, choice)
    values = {
        **_parallelism(case, choice, possible),
        **_lengths(case, choice),
        **sequences,
        **_utilisation(case),
        **_executor(case, choice.split),
        **host_values(case.rules, case.space, choice.split, choice.room),
    }
    unset = {name: value for name, value in values.items() if name not in given.flags and is_known(given, name)}
    chosen = unset.get(SEQUENCES)
    return Fit(
        devices,
        choice.split.tensor,
        choice.split.pipeline,
        choice.split.data,
        choice.length,
        int(str(chosen.value)) if chosen else given.number(SEQUENCES),
        choice.tokens,
        unset,
        (*case.pool.findings, *limited, *_idle(case, devices, choice.split), *_slow(case, choice.split)),
        tuple(_uses(case, choice, devices)),
        case.pool.devices,
    )


def _uses(case: FitCase, choice: Choice, devices: tuple[Device, ...]) -> Iterator[Use]:
    """Yield how each device's memory is used."""
    room, world = choice.room, min(choice.split.world, len(devices))
    for rank, device in enumerate(devices):
        total = device.memory_total or case.memory.total
        yield Use(device.number, rank // world, total, room.weights, room.other, max(0, room.left))


def _groups(case: FitCase, split: Split) -> int:
    """Return the number of tensor-parallel groups on this host."""
    return max(1, min(split.pipeline * split.data, len(case.pool.devices) // split.tensor))


# --- the values -----------------------------------------------------------------------------------------------------


def _parallelism(case: FitCase, choice: Choice, possible: tuple[Split, ...]) -> dict[str, Value]:
    split = choice.split
    values = {TENSOR: Value(str(split.tensor), _because(case, choice), tuple(_instead(case, choice, possible)))}
    if split.pipeline > 1:
        stages = f"{split.pipeline} stages of {counted(split.tensor, 'device')}"
        because = f"tensor parallelism alone does not fit the model: {stages} do"
        values[PIPELINE] = Value(str(split.pipeline), because, ("1: the layers of all stages would not fit",))
    if split.data > 1:
        copy = "over which the experts are distributed" if case.model.expert_share else "each with a full copy"
        because = f"{split.data} engines, {copy}: {split.data * split.world} devices serve, {split.world} in each"
        instead = (f"1: {counted(split.world * (split.data - 1), 'device')} would stay idle",)
        values[DATA] = Value(str(split.data), because, instead)
    if split.experts and case.space.experts is None:
        values[EXPERT] = Value(value=True, because=spread_because(case.model, split.tensor * split.engines))
    return values


def _because(case: FitCase, choice: Choice) -> str:
    if case.model.weights is None and case.cache is None:
        return f"{case.model.unknown}, so the model's size is unknown; set -tp to use more devices"
    if case.cache is None:
        return f"{choice.room.describe()}; {case.model.unknown}"
    aim = choice.because
    if case.model.estimated and case.model.unknown:
        aim = f"{aim}; {case.model.unknown}"
    length, usual = choice.length or case.rules.shortest_context, case.demand.usual
    one = f"one sequence of {length} tokens takes {gib(case.cache.bytes(length, choice.split))}"
    several = f"{gib(max(0, choice.room.left))} hold {counted(held(case, choice) or 0, 'sequence')} of {usual} tokens"
    return f"{aim}; {choice.room.describe()}; {one}, and {several}"


def _instead(case: FitCase, choice: Choice, possible: tuple[Split, ...]) -> Iterator[str]:
    """Yield the reasons against half and twice the number of devices."""
    tensor = choice.split.tensor
    smaller, larger = tensor // 2, 2 * tensor
    if smaller:
        yield f"{smaller}: {_why_not(case, smaller, choice, possible)}"
    if larger <= len(case.pool.devices):
        yield f"{larger}: {_why_not(case, larger, choice, possible)}"


def _why_not(case: FitCase, tensor: int, best: Choice, possible: tuple[Split, ...]) -> str:
    """Return the reason against a tensor-parallel size other than the best one."""
    why = obstacle(case.model, case.rules, tensor, case.space.experts)
    if why:
        return why
    split = next((split for split in possible if split.tensor == tensor and split.pipeline == 1), None)
    if split is None:
        return "not possible with the parallelism that you set"
    choice = choice_under(case, split)
    if choice is None or not has_full_length(case, choice):
        return f"too little memory: {case.room(split).describe()}, {_shortage(case, choice)}"
    return _why_worse(case, choice, best)


def _why_worse(case: FitCase, choice: Choice, best: Choice) -> str:
    """Return the reason against a split with the full length."""
    split = choice.split
    if split.tensor > case.space.wide:
        return f"the group would use a slower link: the fastest links join only {counted(case.space.wide, 'device')}"
    if not is_enough(case, choice):
        return f"room for {_held_by_all(case, choice)}"
    if case.space.aim == THROUGHPUT:
        return f"fewer engines than {best.split.data}, and fewer sequences at a time"
    if is_small(case):
        return "the model is too small for a split: engines of their own answer more requests"
    if not is_worthwhile(case, split):
        return f"less than {gib(least_read(case))} of weights per device: exchanging results would take as long"
    return _why_not_as_good(case, split, best.split)


def _why_not_as_good(case: FitCase, split: Split, best: Split) -> str:
    """Return the reason against a split that would do."""
    idle = len(case.pool.devices) - split.world * split.data
    if idle:
        return f"{counted(idle, 'device')} would stay idle"
    if split.world > best.world:
        return "not needed"
    return "slower answers" if case.space.aim == LATENCY else "slower answers; --optimize throughput chooses it"


def _held_by_all(case: FitCase, choice: Choice) -> str:
    engines = choice.split.data
    most, needed = (held(case, choice) or 0) * engines, demanded(case, choice.split) * engines
    return f"{counted(most, 'sequence')} of {case.demand.usual} tokens instead of {needed}"


def _shortage(case: FitCase, choice: Choice | None) -> str:
    if choice is None:
        return "nothing is left for the KV cache"
    return f"which leaves room for {choice.length} tokens of {case.demand.length}"


def _lengths(case: FitCase, choice: Choice) -> dict[str, Value]:
    length, demanded = choice.length, case.demand.length
    if length is None or case.cache is None or demanded is None or case.demand.left_to_vllm:
        return {}
    if length == demanded:
        return _length_of_intents(case, length) if case.demand.from_intents else {}
    need, left = gib(case.cache.bytes(demanded, choice.split)), gib(choice.room.left)
    because = f"one sequence of {demanded} tokens needs {need} of KV cache on each device, and {left} are free"
    return {LENGTH: Value(str(length), because, (f"{demanded}: vLLM would refuse to start",))}


def _length_of_intents(case: FitCase, length: int) -> dict[str, Value]:
    most = case.model.geometry.max_length if case.model.geometry else None
    longer = (f"{most}, the model's own: one sequence could fill the KV cache of many",) if most else ()
    return {LENGTH: Value(str(length), case.demand.because, (*longer, "less: the longest request would be refused"))}


def _sequences(case: FitCase, choice: Choice) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Choose --max-num-seqs from --concurrency, with a notice if the KV cache holds fewer sequences."""
    concurrency, engines = case.given.intents.concurrency, max(choice.split.data, choice.split.engines)
    if concurrency is None:
        return _state_sequences(case, choice), ()
    each = -(-concurrency // engines)
    step, room = case.given.number(BATCHED) or case.rules.chunk, held(case, choice)
    fitting = each if room is None or not case.demand.typical else max(1, room)
    because = f"--concurrency {concurrency}" + (f" over {engines} engines" if engines > 1 else "")
    if min(fitting, step) >= each:
        both = ("more: exceeds --concurrency", "fewer: requests would wait while the KV cache has room")
        return {SEQUENCES: Value(str(each), because, both)}, ()
    fewer = min(fitting, step)
    because, instead = _fewer(case, fitting, step, each)
    queued = notice("PLAN-026", f"{fewer * engines} at a time", f"{concurrency} at a time", because=because)
    return {SEQUENCES: Value(str(fewer), because, (instead,))}, (queued,)


def _fewer(case: FitCase, fitting: int, step: int, each: int) -> tuple[str, str]:
    """Return the reason for fewer sequences than --concurrency, and the reason against all of them."""
    if step < fitting:
        because = f"a step computes {step} tokens, and every running sequence takes one"
        return because, f"{each}: vLLM refuses to start"
    because = (
        f"the KV cache holds {counted(fitting, 'sequence')} of {case.demand.typical} tokens, the mean of the ranges"
    )
    return because, f"{each}: vLLM would preempt running requests"


def _state_sequences(case: FitCase, choice: Choice) -> dict[str, Value]:
    """Limit the sequences of a model whose layers keep a state: vLLM refuses to start if the states do not fit."""
    if case.cache is None or not case.cache.geometry.states:
        return {}
    one = case.cache.bytes(1, choice.split)
    fitting = max(1, choice.room.left // one)
    if fitting >= MOST_SEQUENCES:
        return {}
    because = f"each sequence keeps a state of {one >> 20} MiB on each device at any length; {fitting} states fit"
    instead = (f"up to {MOST_SEQUENCES}, vLLM's default: vLLM would refuse to start",)
    return {SEQUENCES: Value(str(fitting), because, instead)}


def _utilisation(case: FitCase) -> dict[str, Value]:
    if case.memory.cache is not None:
        return {}
    share, total = case.memory.share, case.memory.total
    rest = gib(total * (1 - share))
    because = f"{rest} of {gib(total)} stay free for the driver and for memory that vLLM does not count"
    more = "more: allocations of other libraries would fail and end the server"
    if share < case.rules.usable:
        because = f"other processes hold memory: {share:.0%} is free, and vLLM refuses to start with a larger share"
        more = f"{case.rules.usable:g}: more than is free"
    return {UTILISATION: Value(f"{share:g}", because, (more, "less: the KV cache would hold fewer tokens"))}


def _executor(case: FitCase, split: Split) -> dict[str, Value]:
    if split.world == 1:
        kind, because = "uni", "the engine process itself runs the one device, without messages between processes"
    elif split.world <= len(case.pool.devices):
        kind, because = "mp", f"{split.world} worker processes on one host"
    elif case.given.flag(NODES) is not None:
        kind, because = "mp", f"vLLM's own launcher starts the workers on several hosts ({NODES})"
    else:
        kind, because = "ray", "Ray runs one engine on several hosts"
    return {EXECUTOR: Value(kind, because)} if kind in case.rules.executors else {}


# --- notices --------------------------------------------------------------------------------------------------------


def _idle(case: FitCase, devices: tuple[Device, ...], split: Split) -> Iterator[Notice]:
    """Yield a notice with the idle devices, and the flag that would use them."""
    idle = tuple(device for device in case.pool.devices if device not in devices)
    if not idle or LOCAL in case.given.flags:
        return
    because, use = _why_idle(case, split, len(idle))
    found = f"devices {numbers(idle)} of {len(case.pool.devices)}"
    yield notice("PLAN-025", found, "none", because=because, use=f"{use} --devices {numbers(idle)}")


def _why_idle(case: FitCase, split: Split, idle: int) -> tuple[str, str]:
    """Return why devices stay idle, and how to use them; what is returned second ends before `--devices`."""
    another = "start another server with"
    wide, engines = split.world, split.data + idle // split.world
    if case.model.weights is None and case.cache is None:
        return f"the model's size is unknown, so one device serves; {case.model.unknown}", f"set -tp, or {another}"
    if idle < wide:
        return f"{split.as_flags()} leaves fewer than the {wide} of another engine", another
    if not case.rules.data:
        return "this stack runs one engine per server", another
    if case.space.data:
        return f"you set -dp {case.space.data}", f"set -dp {engines}, or {another}"
    if case.space.tensor:
        return f"you set -tp {case.space.tensor}", f"set -dp {engines}, leave out -tp, or {another}"
    return "more engines would cut an expert's matrices", another


def _slow(case: FitCase, split: Split) -> Iterator[Notice]:
    wide = case.space.wide
    if crosses(case.space, split):
        expected = f"at most {counted(wide, 'device')}, joined by the fastest links"
        yield notice("PLAN-027", split.as_flags(), expected, wide=str(wide))
