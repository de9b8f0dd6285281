"""The choice of devices, parallelism, lengths and memory that all accelerators share, with reasons. Pure.

Each accelerator gives its `Rules` and adds its own settings. Sources: vLLM 0.27's config/parallel.py, config/cache.py,
v1/core/kv_cache_utils.py and v1/worker/gpu_worker.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import DOES_NOT_FIT, EntrypointError
from entrypoints.core.parse import parse_version_numbers
from entrypoints.core.records import Device, Facts, Notice, Use, Value
from entrypoints.core.text import format_count
from entrypoints.decide.parallelism.constraints import possible_splits, with_slices
from entrypoints.decide.parallelism.devices import arrange_devices, format_numbers
from entrypoints.decide.parallelism.fit_input import FitCase, is_known, read_case
from entrypoints.decide.parallelism.hosts import CARDS, FABRIC, NVLINK, find_type_with_rdma
from entrypoints.decide.parallelism.memory_fit import (
    Choice,
    choices_under,
    compute_room,
    count_held_sequences,
    has_full_length,
    is_enough,
)
from entrypoints.decide.parallelism.objective import choose_by_aim, rank_splits, rate_split_links
from entrypoints.decide.parallelism.offload import check_user_offload, choose_offload
from entrypoints.decide.parallelism.reasons import make_split_values, over_hosts
from entrypoints.decide.parallelism.rules import Rules, Space, Split
from entrypoints.decide.records import does_not_fit, gib
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import (
    BATCHED,
    BLOCKS,
    CACHE_BYTES,
    EXECUTOR,
    KV_OFFLOAD,
    LENGTH,
    LOCAL,
    NODES,
    SEQUENCES,
    UTILISATION,
)
from entrypoints.request.vllm_flags import UserFlags

__all__ = ["Concession", "Fit", "Rules", "fit_by_concessions", "fit_model", "fit_with_smaller_steps"]

MOST_SEQUENCES = 1024
"""vLLM's largest default of --max-num-seqs: an API server on a large device (0.27 engine/arg_utils.py)."""

_NEARLY = 0.02
"""Share of a device's memory below which the account is no ground for a refusal while a setting can take less."""
_CHUNKS_SINCE = (0, 11)
"""Since this version every engine of vLLM divides prompts among steps (0.11 has no V0 engine any more)."""
_CONCEDED_TOKENS = 2048
"""Tokens of a step that takes half of the activations of a usual one, or less: these grow with the tokens."""

_MOST_HOSTS = 16
"""Hosts that a hint proposes at most."""


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
    is_shortened: bool = False
    """Whether sequences are shorter than the model allows, or the user's goals ask for."""


class Concession(NamedTuple):
    """Settings that take less memory, and the rules with them."""

    settings: Mapping[str, Value]
    rules: Rules


def fit_model(facts: Facts, model: ModelFacts, user_flags: UserFlags, rules: Rules) -> Fit:
    """Choose every setting that the user did not set.

    Raises HOST without a usable device or its memory, MODEL if the model's configuration is needed and invalid,
    DOES_NOT_FIT, and USAGE if the user's settings are impossible.
    """
    case = read_case(facts, model, user_flags, rules)
    possible = rank_splits(case, possible_splits(case))
    choice = _choose_split(case, possible)
    size = min(choice.split.tensor, len(case.pool.devices))
    groups = arrange_devices(case.pool.devices, facts.links, size, _count_tensor_groups(case, choice.split))
    devices = tuple(device for group in groups for device in group)
    sequences, limited = _choose_max_sequences(case, choice)
    values = {
        **make_split_values(case, choice, possible),
        **_choose_served_length(case, choice),
        **sequences,
        **_choose_utilisation(case),
        **_choose_fit_executor(case, choice.split),
        **over_hosts(case, choice),
        **_choose_kv_offload(case, choice, devices),
    }
    unset = {
        name: value for name, value in values.items() if name not in user_flags.flags and is_known(user_flags, name)
    }
    sequence_limit = unset.get(SEQUENCES)
    return Fit(
        devices,
        choice.split.tensor,
        choice.split.pipeline,
        choice.split.data,
        choice.length,
        int(str(sequence_limit.value)) if sequence_limit else user_flags.number(SEQUENCES),
        choice.tokens,
        unset,
        (
            *case.pool.findings,
            *limited,
            *_check_idle_devices(case, devices, choice.split),
            *_check_slow_links(case, choice.split),
            *_check_missing_rdma(case),
        ),
        tuple(_list_device_uses(case, choice, devices)),
        case.pool.devices,
        not has_full_length(case, choice),
    )


def fit_by_concessions(
    facts: Facts, model: ModelFacts, user_flags: UserFlags, rules: Rules, concessions: Iterable[Concession]
) -> tuple[Fit, Mapping[str, Value]] | None:
    """Return the fit with the first concession that makes a refused model fit, and the settings of that one.

    Weights that are estimated count with their margin first, then without: a margin alone refuses nothing. None if the
    model lacks more than 2 % of a device's memory, or if no concession is enough. Raises as `read_case`.
    """
    exact = model._replace(estimated=False)
    if not _fits_nearly(read_case(facts, exact, user_flags, rules)):
        return None
    models = (model, exact) if model.estimated else (model,)
    for counted, concession in product(models, tuple(concessions)):
        try:
            fit = fit_model(facts, counted, user_flags, concession.rules)
        except EntrypointError:
            continue
        given_way = [f"{name} {value.value}".removesuffix(" True") for name, value in concession.settings.items()]
        margin = ["no margin for weights that are estimated"] * (counted is not model)
        notice = make_notice("PLAN-028", ", ".join([*given_way, *margin]), "the usual batch and graphs")
        unlimited_values = {
            name: value for name, value in fit.values.items() if not _is_more(value, concession.settings.get(name))
        }
        return fit._replace(values=unlimited_values, findings=(*fit.findings, notice)), concession.settings
    return None


def fit_with_smaller_steps(
    facts: Facts, model: ModelFacts, user_flags: UserFlags, rules: Rules, vllm: str
) -> tuple[Fit, Mapping[str, Value]]:
    """Fit, if need be with smaller steps; return their settings too. Raises the errors of `fit_model`.

    For an accelerator whose activations are known for the usual step only. `vllm` is the image's version.
    """
    try:
        return fit_model(facts, model, user_flags, rules), {}
    except EntrypointError as error:
        chunks = parse_version_numbers(vllm) >= _CHUNKS_SINCE
        if error.code != DOES_NOT_FIT or not chunks or BATCHED in user_flags.flags or rules.chunk <= _CONCEDED_TOKENS:
            raise
        because = f"the model fits only with the activations of fewer tokens than {rules.chunk} in a step"
        settings = {BATCHED: Value(str(_CONCEDED_TOKENS), because, (f"{rules.chunk}: does not fit",))}
        smaller = rules._replace(chunk=_CONCEDED_TOKENS, activations=rules.activations // 2)
        conceded = fit_by_concessions(facts, model, user_flags, rules, (Concession(settings, smaller),))
        if conceded is None:
            raise
        return conceded


def _is_more(value: Value, conceded: Value | None) -> bool:
    return conceded is not None and float(value.value) > float(conceded.value)


def _fits_nearly(case: FitCase) -> bool:
    """Return whether the best split lacks at most 2 % of a device's memory for the shortest length that would do."""
    if case.cache is None or case.demand.length is None:
        return False
    length = case.demand.length if case.demand.fixed else min(case.demand.length, case.rules.shortest_context)
    lacking = (case.cache.bytes(length, split) - compute_room(case, split).left for split in possible_splits(case))
    return min(lacking, default=case.memory.total) <= _NEARLY * case.memory.total


def _choose_split(case: FitCase, possible: tuple[Split, ...]) -> Choice:
    """Return the best split that fits; the first one if the model's size is unknown. Raises DOES_NOT_FIT."""
    if case.is_unknown:
        one = possible[0]._replace(data=case.space.data or 1, engines=case.space.engines or 1)
        return Choice(one, compute_room(case, one), case.demand.length, None)
    choices = choices_under(case, possible)
    best = choose_by_aim(case, choices)
    if best is None or not has_full_length(case, best) or _takes_longer_path(case, best):
        sliced = choose_by_aim(case, [*choices, *choices_under(case, with_slices(case, possible))])
        if sliced and has_full_length(case, sliced) and sliced != best:
            slices = "every expert is split into slices, whose buffers leave room for the full length"
            return sliced._replace(because="; ".join(filter(None, (sliced.because, slices))))
    if best is None:
        raise _make_fit_error(case, possible, choices)
    return best


def _takes_longer_path(case: FitCase, choice: Choice) -> bool:
    """Return whether a group of one host uses other than its fastest links, though the user did not ask for it."""
    return case.space.hosts == 1 and case.space.pipeline is None and rate_split_links(choice.split, case.space) > 0


def _list_device_uses(case: FitCase, choice: Choice, devices: tuple[Device, ...]) -> Iterator[Use]:
    """Yield how each device's memory is used."""
    room, world = choice.room, min(choice.split.world, len(devices))
    for rank, device in enumerate(devices):
        total = device.memory_total or case.memory.total
        cache, tokens = max(0, room.left), choice.tokens or 0
        yield Use(device.number, rank // world, total, room.weights, room.other, cache, choice.length or 0, tokens)


def _count_tensor_groups(case: FitCase, split: Split) -> int:
    """Return the number of tensor-parallel groups on this host."""
    return max(1, min(split.pipeline * split.data, len(case.pool.devices) // split.tensor))


# --- the values -----------------------------------------------------------------------------------------------------


def _choose_served_length(case: FitCase, choice: Choice) -> dict[str, Value]:
    length, demanded = choice.length, case.demand.length
    if length is None or case.cache is None or demanded is None or case.demand.left_to_vllm:
        return {}
    if length == demanded:
        return _length_of_intents(case, length) if case.demand.from_intents else {}
    need, free = gib(case.cache.bytes(demanded, choice.split)), gib(choice.room.left)
    because = f"one sequence of {demanded} tokens needs {need} of KV cache on each device, and {free} are free"
    return {LENGTH: Value(str(length), because, (f"{demanded}: vLLM would refuse to start",))}


def _length_of_intents(case: FitCase, length: int) -> dict[str, Value]:
    most = case.model.geometry.max_length if case.model.geometry else None
    longer = (f"{most}, the model's own: one sequence could fill the KV cache of many",) if most else ()
    return {LENGTH: Value(str(length), case.demand.because, (*longer, "less: the longest request would be refused"))}


def _choose_max_sequences(case: FitCase, choice: Choice) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Choose --max-num-seqs from --concurrency, with a notice if the KV cache holds fewer sequences."""
    concurrency, engines = case.user_flags.intents.concurrency, max(choice.split.data, choice.split.engines)
    if concurrency is None:
        return _limit_state_sequences(case, choice)
    per_engine = -(-concurrency // engines)
    step, fitting = (
        case.user_flags.number(BATCHED) or case.rules.chunk,
        _count_allowed_sequences(case, choice, per_engine),
    )
    because = f"--concurrency {concurrency}" + (f" over {engines} engines" if engines > 1 else "")
    if min(fitting, step) >= per_engine:
        alternatives = ("more: exceeds --concurrency", "fewer: requests would wait while the KV cache has room")
        return {SEQUENCES: Value(str(per_engine), because, alternatives)}, ()
    fewer = min(fitting, step)
    because, instead = _explain_fewer_sequences(case, fitting, step, per_engine)
    queued = make_notice("PLAN-026", f"{fewer * engines} at a time", f"{concurrency} at a time", because=because)
    return {SEQUENCES: Value(str(fewer), because, (instead,))}, (queued,)


def _count_allowed_sequences(case: FitCase, choice: Choice, per_engine: int) -> int:
    """Return how many sequences may run at a time for the KV cache; of unknown length, at least the stack's default."""
    most = count_held_sequences(case, choice)
    if most is None:
        return per_engine
    return max(1, most) if case.demand.typical else max(most, case.rules.sequences)


def _explain_fewer_sequences(case: FitCase, fitting: int, step: int, per_engine: int) -> tuple[str, str]:
    """Return the reason for fewer sequences than --concurrency, and the reason against all of them."""
    if step < fitting:
        because = f"a step computes {step} tokens, and every running sequence takes one"
        return because, f"{per_engine}: vLLM refuses to start"
    sequences = format_count(fitting, "sequence")
    because = f"the KV cache holds {sequences} of {case.demand.typical} tokens, the mean of the ranges"
    if not case.demand.typical:
        because = (
            f"the lengths are unknown (--input-range, --output-range), so {sequences} run at a time: the default, or as"
            f" many of {case.demand.usual} tokens as the KV cache holds if these are more"
        )
    return because, f"{per_engine}: vLLM would preempt running requests"


def _limit_state_sequences(case: FitCase, choice: Choice) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Limit the sequences of a model whose layers keep a state, or say that the user's do not fit.

    vLLM refuses to start if the states do not fit.
    Source: vLLM 0.32 config/compilation.py, resolve_cudagraph_mode_and_sizes.
    """
    if case.cache is None or not case.cache.geometry.states:
        return {}, ()
    one, sequences_of_user = case.cache.bytes(1, choice.split), case.user_flags.number(SEQUENCES)
    fitting = max(1, choice.room.left // one)
    because = f"each sequence keeps a state of {one >> 20} MiB on each device at any length; {fitting} states fit"
    if sequences_of_user and sequences_of_user > fitting:
        too_many = f"{SEQUENCES} {sequences_of_user}"
        return {}, (make_notice("PLAN-018", too_many, f"at most {fitting}", because=because),)
    if fitting >= MOST_SEQUENCES:
        return {}, ()
    instead = (f"up to {MOST_SEQUENCES}, vLLM's default: vLLM would refuse to start",)
    return {SEQUENCES: Value(str(fitting), because, instead)}, ()


def _choose_utilisation(case: FitCase) -> dict[str, Value]:
    if case.memory.cache is not None:
        return {}
    share, total = case.memory.share, case.memory.total
    unused_memory = gib(total * (1 - share))
    because = f"{unused_memory} of {gib(total)} stay free for the driver and for memory that vLLM does not count"
    more = "more: allocations of other libraries would fail and end the server"
    if share < case.rules.usable:
        because = f"other processes hold memory: {share:.0%} is free, and vLLM refuses to start with a larger share"
        more = f"{case.rules.usable:g}: more than is free"
    if case.rules.free is not None:
        because = f"the processor uses the same memory, of which vLLM finds {gib(case.rules.free)} free; {because}"
    return {UTILISATION: Value(f"{share:g}", because, (more, "less: the KV cache would hold fewer tokens"))}


def _choose_kv_offload(case: FitCase, choice: Choice, devices: tuple[Device, ...]) -> dict[str, Value]:
    """Choose the size of the KV cache in the host's memory, if the user asks for one. Raises HOST, DOES_NOT_FIT."""
    check_user_offload(case.model.name, case.facts, case.user_flags, choice.split)
    if not (case.user_flags.intents.offload and case.rules.offload) or KV_OFFLOAD in case.user_flags.flags:
        return {}
    return choose_offload(case.facts, devices, max(1, choice.split.data), case.rules.offload)


def _choose_fit_executor(case: FitCase, split: Split) -> dict[str, Value]:
    if split.world == 1:
        kind, because = "uni", "the engine process itself runs the one device, without messages between processes"
    elif split.world <= len(case.pool.devices):
        kind, because = "mp", f"{split.world} worker processes on one host"
    elif case.user_flags.flag(NODES) is not None:
        kind, because = "mp", f"vLLM's own launcher starts the workers on several hosts ({NODES})"
    else:
        kind, because = "ray", "Ray runs one engine on several hosts"
    return {EXECUTOR: Value(kind, because)} if kind in case.rules.executors else {}


# --- notices --------------------------------------------------------------------------------------------------------


def _check_idle_devices(case: FitCase, devices: tuple[Device, ...], split: Split) -> Iterator[Notice]:
    """Yield a notice with the idle devices, and the flag that would use them."""
    idle = tuple(device for device in case.pool.devices if device not in devices)
    if not (idle and case.rules.names_idle) or LOCAL in case.user_flags.flags:
        return
    because, use = _why_idle(case, split, len(idle))
    idle_devices = f"devices {format_numbers(idle)} of {len(case.pool.devices)}"
    yield make_notice("PLAN-025", idle_devices, "none", because=because, use=f"{use} --devices {format_numbers(idle)}")


def _why_idle(case: FitCase, split: Split, idle: int) -> tuple[str, str]:
    """Return why devices stay idle, and how to use them; what is returned second ends before `--devices`."""
    another = "start another server with"
    wide, engines = split.world, split.data + idle // split.world
    if case.is_unknown:
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


def _check_slow_links(case: FitCase, split: Split) -> Iterator[Notice]:
    wide = case.space.wide
    if _crosses_slow_links(case.space, split):
        expected = f"at most {format_count(wide, 'device')}, joined by the fastest links"
        yield make_notice("PLAN-027", split.as_flags(), expected, wide=str(wide))


def _check_missing_rdma(case: FitCase) -> Iterator[Notice]:
    """Yield a question about RDMA that the machine's type has, and that this container does not show."""
    if case.space.hosts == 1 or case.space.between:
        return
    machine_type = find_type_with_rdma(case.facts)
    if machine_type:
        yield make_notice("PLAN-029", f"no RDMA device on {machine_type}", "a device in /sys/class/infiniband")


def _crosses_slow_links(space: Space, split: Split) -> bool:
    """Return whether a tensor-parallel group uses slower links than the fastest inside a host."""
    spanned = space.span(split) if split.pipeline == 1 else 1
    slow_network = spanned > 1 and space.between not in (FABRIC, NVLINK, CARDS)
    return slow_network or -(-split.tensor // spanned) > space.wide


# --- what does not fit ----------------------------------------------------------------------------------------------


def _make_fit_error(case: FitCase, possible: tuple[Split, ...], choices: list[Choice]) -> EntrypointError:
    """Return the error for a model that no possible split has room for, with the changes that would make it fit."""
    best = max(possible, key=lambda split: compute_room(case, split).left)
    split = max(choices, key=lambda choice: choice.length or 0).split if choices else best
    length, need = case.demand.length, ""
    if case.cache and length:
        need = f"; the KV cache of {length} tokens takes {gib(case.cache.bytes(length, split))}"
    sizes = "".join(f"; given: {size}" for size in _list_user_sizes(case))
    message = f"{case.model.name}: with {split.as_flags()}, {compute_room(case, split).describe()}{need}{sizes}"
    return does_not_fit(message, "; ".join(_what_fits(case, choices)))


def _list_user_sizes(case: FitCase) -> list[str]:
    """Return how the user set the size of the KV cache."""
    flags = case.user_flags.flags
    return [flags[name].given for name in (CACHE_BYTES, BLOCKS) if name in flags and flags[name].given]


def _what_fits(case: FitCase, choices: list[Choice]) -> Iterator[str]:
    """Yield changes that would make the model fit, the smallest change first."""
    longest = max((choice.length or 0 for choice in choices), default=0)
    without_size = case._replace(memory=case.memory._replace(cache=None, blocks=0))
    for size in _list_user_sizes(case):
        if any(is_enough(without_size, choice) for choice in _list_choices(without_size)):
            yield f"without {size} it fits"
    if longest >= case.rules.shortest_context:
        yield f"{LENGTH} {longest} fits"
    without_fixed = case.space._replace(tensor=None, pipeline=None, data=None)
    if without_fixed != case.space:
        other_choices = _list_choices(case._replace(space=without_fixed))
        fitting = next((choice for choice in other_choices if is_enough(case, choice)), None)
        if fitting:
            yield f"{fitting.split.as_flags()} fits"
    if case.rules.element > 1 and not case.model.quantization:
        yield "a quantised model takes less memory"
    if case.rules.ways:
        yield from _more_hosts(case)
    yield f"use more or larger devices than {len(case.pool.devices)} of {gib(case.memory.total)}"


def _more_hosts(case: FitCase) -> Iterator[str]:
    """Yield the smallest number of such hosts that holds the model; nothing if 16 do not."""
    space = case.space._replace(tensor=None, pipeline=None, data=None, engines=None)
    hosts = 2 * space.hosts
    while hosts <= _MOST_HOSTS:
        split = _first_fitting(case._replace(space=space._replace(hosts=hosts)))
        if split:
            yield f"{NODES} {hosts} fits: {split.as_flags()}"
            return
        hosts *= 2


def _first_fitting(case: FitCase) -> Split | None:
    try:
        choices = _list_choices(case)
    except EntrypointError:  # no parallelism uses so many hosts
        return None
    return next((choice.split for choice in choices if has_full_length(case, choice)), None)


def _list_choices(case: FitCase) -> list[Choice]:
    """Return the choices of another space, best first. Raises as `possible_splits`."""
    return choices_under(case, rank_splits(case, possible_splits(case)))
