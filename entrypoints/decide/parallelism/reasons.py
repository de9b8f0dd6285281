"""The chosen split as settings, with the reasons for it and against others. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from entrypoints.core.records import Value
from entrypoints.core.text import format_count
from entrypoints.decide.parallelism.constraints import experts_because, find_tensor_obstacle
from entrypoints.decide.parallelism.fit_input import FitCase
from entrypoints.decide.parallelism.hosts import FABRIC, NATIVE, NVLINK, describe_link
from entrypoints.decide.parallelism.memory_fit import (
    Choice,
    DeviceRoom,
    choice_under,
    compute_room,
    count_demanded_sequences,
    count_held_sequences,
    has_full_length,
    is_enough,
)
from entrypoints.decide.parallelism.objective import (
    LATENCY,
    THROUGHPUT,
    is_small,
    is_worthwhile,
    least_read,
    leaves_enough,
)
from entrypoints.decide.parallelism.rules import Rules, Space, Split
from entrypoints.decide.records import gib
from entrypoints.request.flags import DATA, EXECUTOR, EXPERT, LOCAL, NODES, PIPELINE, TENSOR


def make_split_values(case: FitCase, choice: Choice, possible: tuple[Split, ...]) -> dict[str, Value]:
    """Return the parallelism as settings."""
    split = choice.split
    values = {
        TENSOR: Value(
            str(split.tensor), _explain_choice(case, choice), tuple(_explain_alternatives(case, choice, possible))
        )
    }
    if split.pipeline > 1:
        stages = f"{split.pipeline} stages of {format_count(split.tensor, 'device')}"
        because = f"tensor parallelism alone does not fit the model: {stages} do"
        values[PIPELINE] = Value(str(split.pipeline), because, ("1: the layers of all stages would not fit",))
    if split.data > 1:
        copy = "over which the experts are distributed" if case.model.expert_share else "each with a full copy"
        because = f"{split.data} engines, {copy}: {split.data * split.world} devices serve, {split.world} in each"
        instead = (f"1: {format_count(split.world * (split.data - 1), 'device')} would stay idle",)
        values[DATA] = Value(str(split.data), because, instead)
    if split.experts and case.space.experts is None:
        values[EXPERT] = Value(
            value=True, because=experts_because(case.model, case.rules, split.tensor * split.engines)
        )
    return values


def _explain_choice(case: FitCase, choice: Choice) -> str:
    if case.is_unknown:
        return f"{case.model.unknown}, so the model's size is unknown; set -tp to use more devices"
    if case.cache is None:
        return f"{choice.room.describe()}; {case.model.unknown}"
    aim = choice.because
    if case.model.estimated and case.model.unknown:
        aim = f"{aim}; {case.model.unknown}"
    length, usual = choice.length or case.rules.shortest_context, case.demand.usual
    one = f"one sequence of {length} tokens takes {gib(case.cache.bytes(length, choice.split))}"
    sequences = format_count(count_held_sequences(case, choice) or 0, "sequence")
    several = f"{gib(max(0, choice.room.left))} hold {sequences} of {usual} tokens"
    return f"{aim}; {choice.room.describe()}; {one}, and {several}"


def _explain_alternatives(case: FitCase, choice: Choice, possible: tuple[Split, ...]) -> Iterator[str]:
    """Yield the reasons against half and twice the number of devices."""
    tensor = choice.split.tensor
    smaller, larger = tensor // 2, 2 * tensor
    if smaller:
        yield f"{smaller}: {_why_not(case, smaller, choice, possible)}"
    if larger <= len(case.pool.devices):
        yield f"{larger}: {_why_not(case, larger, choice, possible)}"


def _why_not(case: FitCase, tensor: int, best: Choice, possible: tuple[Split, ...]) -> str:
    """Return the reason against a tensor-parallel size other than the best one."""
    why = find_tensor_obstacle(case.model, case.rules, tensor, case.space.experts)
    if why:
        return why
    split = next((split for split in possible if split.tensor == tensor and split.pipeline == 1), None)
    if split is None and tensor % case.rules.chip:
        return f"one process uses all {case.rules.chip} devices of a chip"
    if split is None:
        return "not possible with the parallelism that you set"
    choice = choice_under(case, split)
    if choice is None or not has_full_length(case, choice):
        return f"too little memory: {compute_room(case, split).describe()}, {_describe_shortage(case, choice)}"
    return _why_worse(case, choice, best)


def _why_worse(case: FitCase, choice: Choice, best: Choice) -> str:
    """Return the reason against a split with the full length."""
    split = choice.split
    if split.tensor > case.space.wide:
        return (
            f"the group would use a slower link: the fastest links join only {format_count(case.space.wide, 'device')}"
        )
    if not is_enough(case, choice):
        return f"room for {_held_by_all(case, choice)}"
    if case.space.aim == THROUGHPUT:
        return _why_not_for_throughput(case, choice, best)
    if is_small(case):
        return "the model is too small for a split: engines of their own answer more requests"
    if not is_worthwhile(case, split):
        least = gib(least_read(case, split.world))
        return f"less than {least} of weights per device: exchanging results would take as long"
    return _why_not_as_good(case, split, best.split)


def _why_not_for_throughput(case: FitCase, choice: Choice, best: Choice) -> str:
    """Return the reason against a split that holds what was requested."""
    if not leaves_enough(case, choice):
        free, total = gib(choice.room.left), gib(case.memory.total)
        return f"leaves {free} of {total} to the KV cache, not more than {case.rules.cache_share:.0%}"
    if choice.split.world < best.split.world:
        return f"room for {_held_by_all(case, choice)}"
    return f"fewer engines than {best.split.data}, and fewer sequences at a time"


def _why_not_as_good(case: FitCase, split: Split, best: Split) -> str:
    """Return the reason against a split that would do."""
    idle = len(case.pool.devices) - split.world * split.data
    if idle:
        return f"{format_count(idle, 'device')} would stay idle"
    if split.world > best.world:
        return "not needed"
    return "slower answers" if case.space.aim == LATENCY else "slower answers; --optimize throughput chooses it"


def _held_by_all(case: FitCase, choice: Choice) -> str:
    engines = choice.split.data
    most, demand = (
        (count_held_sequences(case, choice) or 0) * engines,
        count_demanded_sequences(case, choice.split) * engines,
    )
    return f"{format_count(most, 'sequence')} of {case.demand.usual} tokens instead of {demand}"


def _describe_shortage(case: FitCase, choice: Choice | None) -> str:
    if choice is None:
        return "nothing is left for the KV cache"
    return f"which leaves room for {choice.length} tokens of {case.demand.length}"


# --- several hosts --------------------------------------------------------------------------------------------------


def over_hosts(case: FitCase, choice: Choice) -> dict[str, Value]:
    """Return the parallelism over hosts as settings, with reasons. Empty for one host."""
    space, split = case.space, choice.split
    if space.hosts == 1:
        return {}
    values = {TENSOR: _tensor_value(space, split, choice.room)}
    if split.pipeline > 1:
        values[PIPELINE] = _pipeline_value(space, split)
    if split.engines > 1:
        values[DATA] = _data_value(space, split)
        values[LOCAL] = _local_value(space, split)
    if split.experts and space.experts is None:
        ranks, where = split.tensor * split.engines, "each pipeline stage" if split.pipeline > 1 else "all hosts"
        values[EXPERT] = Value(value=True, because=f"whole experts are distributed over {ranks} ranks of {where}")
    kind = _choose_host_executor(case.rules, space, split)
    return values | ({EXECUTOR: kind} if kind and case.rules.executors else {})


def _tensor_value(space: Space, split: Split, room: DeviceRoom) -> Value:
    link = describe_link(space.between)
    if split.pipeline == 1 and space.span(split) > 1:
        because = f"one group over {space.span(split)} hosts: {link}; {room.describe()}"
        return Value(str(split.tensor), because, (f"{space.devices}: only as many devices as one host has",))
    total = space.devices * space.hosts
    devices = format_count(space.devices, "device")
    because = f"inside a host, {devices} on each of {space.hosts} equal hosts; {room.describe()}"
    slow = f"{total}: every layer would wait for the network between hosts; {link}"
    fast = f"{total}: not needed; {link}"
    return Value(str(split.tensor), because, (fast if space.between in (FABRIC, NVLINK) else slow,))


def _pipeline_value(space: Space, split: Split) -> Value:
    spanned = space.span(split)
    if spanned == 1:
        return Value(str(split.pipeline), f"{split.pipeline} stages in each engine, which is inside one host")
    because = f"the stages of one engine are on {spanned} hosts: only activations cross the link between them"
    one = f"1: with -tp {split.world} every layer would wait for that link"
    return Value(str(split.pipeline), f"{because}; {describe_link(space.between)}", (one,))


def _data_value(space: Space, split: Split) -> Value:
    work = "each with a full copy"
    if split.experts:
        work = f"each with its own attention, the experts distributed over all; {describe_link(space.between)}"
    because = f"{split.engines} engines of {format_count(split.world, 'device')} on {space.hosts} hosts, {work}"
    return Value(str(split.engines), because, ("1: the devices of the other engines would stay idle",))


def _local_value(space: Space, split: Split) -> Value:
    spanned = space.span(split)
    if spanned > 1:
        return Value("1", f"every {spanned} hosts share one engine; vLLM takes its rank from the host's")
    return Value(str(split.data), f"engines on each host, of {split.engines} on all")


def _choose_host_executor(rules: Rules, space: Space, split: Split) -> Value | None:
    if space.span(split) == 1:
        return Value("mp", "worker processes; each engine is inside one host") if "mp" in rules.executors else None
    if NATIVE in rules.ways:
        instead = ("ray: one more service on each host",)
        return Value("mp", f"vLLM's own launcher starts the workers on every host ({NODES})", instead)
    return Value("ray", "Ray starts the workers on every host", ("mp: this version starts them on one host only",))
