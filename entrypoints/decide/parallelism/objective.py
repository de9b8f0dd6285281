"""The ranking: of the possible splits that fit, the one that serves the user's aim best. Pure.

All devices that were handed over serve. The aims differ in the number of devices that share one copy of the model:

- latency: as many as make an answer faster.
- throughput: as few as hold the model and the KV cache of all sequences, so that there are as many engines as possible.
- none: as many as have a worthwhile share of the weights to read; one for a small model.
"""

from __future__ import annotations

from functools import partial

from entrypoints.core.text import format_count
from entrypoints.core.units import GIB
from entrypoints.decide.parallelism.fit_input import FitCase
from entrypoints.decide.parallelism.hosts import CARDS, FABRIC, NVLINK, RDMA
from entrypoints.decide.parallelism.memory_fit import (
    Choice,
    count_demanded_sequences,
    count_engine_groups,
    count_held_sequences,
    has_full_length,
    holds_all,
    is_enough,
)
from entrypoints.decide.parallelism.rules import NARROW, READ_FOR_LATENCY, Space, Split
from entrypoints.decide.records import gib

LATENCY, THROUGHPUT = "latency", "throughput"

COPIES, STAGED_COPIES = "engines inside a host", "engines inside a host, each with stages"
PIPELINES, ONE_PIPELINE = "pipelines over hosts", "one pipeline over all hosts"
WIDE = "tensor parallelism over hosts"
"""Forms of a split over several hosts."""

_AS_ONE = (FABRIC, NVLINK, CARDS)
"""Links between hosts over which ranks may share a layer."""

_SMALL = 0.25
"""Share of a device's memory below which the weights of a whole model are not split by default: the device has room
for the KV cache of many sequences, and several engines answer more requests than one."""

_READ_BY_DEFAULT, _READ_AT_MOST = 0.05, 6 * GIB
"""Share of a device's memory that its part of the weights takes at least, and a size that is always enough.
Accelerators read all of their memory in 20 to 50 ms, so a twentieth takes 1 to 2.5 ms, and 6 GiB take the fastest ones
about 1 ms: at least as long as the all-reduces of one token."""

_CLEARLY_MORE = 1.25
"""How many times as many sequences narrower engines must run in all, if not each of them holds the stack's default: the
usual length is an estimate, and an engine whose cache is full computes sequences twice (preemption)."""

_LONG_ENOUGH = 0.25
"""Share of the model's own length that a group over fast links must hold, before a longer path is chosen for more."""


def rank_splits(case: FitCase, possible: tuple[Split, ...]) -> tuple[Split, ...]:
    """Return the splits over several hosts best first; those of one host in their order."""
    if case.space.hosts == 1:
        return possible
    forms = _rank_forms(case)

    def rank(split: Split) -> tuple[int, int]:
        form = _classify_split(case.space, split)
        if forms[0] != WIDE or form != WIDE:
            return forms.index(form), 0
        return (0 if is_worthwhile(case, split) else len(forms)), -case.space.span(split)

    return tuple(sorted(possible, key=rank))


def _classify_split(space: Space, split: Split) -> str:
    """Return whether an engine is inside a host or on several, and whether it has stages."""
    if space.span(split) == 1:
        return COPIES if split.pipeline == 1 else STAGED_COPIES
    if split.pipeline == 1:
        return WIDE
    return ONE_PIPELINE if split.engines == 1 else PIPELINES


def _rank_forms(case: FitCase) -> tuple[str, ...]:
    """Return the forms best first, by the link between hosts, the kind of model and the aim."""
    space, geometry = case.space, case.model.geometry
    has_experts = geometry is not None and geometry.experts > 0
    if space.between == CARDS and has_experts:  # which engines of several hosts would exchange over these cards
        return (WIDE, ONE_PIPELINE, COPIES, PIPELINES, STAGED_COPIES)
    as_on_one_host = space.between in (NVLINK, CARDS) and space.aim != THROUGHPUT
    if as_on_one_host or (space.between == FABRIC and space.aim == LATENCY):
        return (WIDE, COPIES, STAGED_COPIES, PIPELINES, ONE_PIPELINE)
    if space.between in _AS_ONE:
        return (COPIES, WIDE, STAGED_COPIES, PIPELINES, ONE_PIPELINE)
    if not has_experts and not space.pipeline:
        return (COPIES, STAGED_COPIES, PIPELINES, ONE_PIPELINE, WIDE)
    if not has_experts or space.between == RDMA or space.aim == THROUGHPUT:
        return (COPIES, PIPELINES, ONE_PIPELINE, STAGED_COPIES, WIDE)
    # engines of a mixture of experts would exchange tokens over a link that may be slow
    return (ONE_PIPELINE, COPIES, PIPELINES, STAGED_COPIES, WIDE)


def choose_by_aim(case: FitCase, choices: list[Choice]) -> Choice | None:
    """Return the choice that serves the aim best; None if none has room for sequences that are worth serving."""
    full = [choice for choice in choices if has_full_length(case, choice)]
    near = _near_and_long(case, choices)
    if full and case.space.hosts > 1 and not (near and _is_longer_path(case, full)):  # the best is first
        return full[0]
    if full and (not near or any(rate_split_links(choice.split, case.space) == 0 for choice in full)):
        return _choose_of_full_length(case, _select_fastest(case, full))
    if not choices or _is_too_short(case, max(choices, key=_get_choice_length)):
        return None
    longest = max(map(_get_choice_length, near or choices))
    best = _find_roomiest([choice for choice in near or choices if _get_choice_length(choice) == longest])
    where = "no group on fast links" if near else "no number of devices"
    return best._replace(because=f"{where} fits the full length, and this one fits the longest sequence")


def _near_and_long(case: FitCase, choices: list[Choice]) -> list[Choice]:
    """Return the choices over the fastest links that hold a good part of a length that the user did not ask for."""
    if case.demand.fixed or case.demand.length is None:
        return []
    least = _LONG_ENOUGH * case.demand.length
    return [
        choice
        for choice in choices
        if rate_split_links(choice.split, case.space) == 0 and _get_choice_length(choice) >= least
    ]


def rate_split_links(split: Split, space: Space) -> int:
    """Return 0 for a split over the fastest links only, 1 for a pipeline of such groups, 2 for one over slow links."""
    joined = space.span(split) if space.between in _AS_ONE else 1
    if split.tensor > space.wide * joined:
        return 2
    return 0 if split.pipeline == (space.pipeline or 1) else 1


def _is_longer_path(case: FitCase, full: list[Choice]) -> bool:
    """Return whether the full length fits only pipelines or slow links, though layers are shared over all hosts.

    Such hosts are as one: guides for TPU slices and for DGX Sparks divide each layer among all devices, and shorten the
    length instead (kubernetes-sigs/lws, docs/examples/vllm/TPU: Llama-3.3-70B on 16 v5e; spark-arena/eugr-recipes,
    8x-spark-cluster: GLM-5.2).
    """
    joined = case.space.between in _AS_ONE
    return joined and all(rate_split_links(choice.split, case.space) > 0 for choice in full)


def _get_choice_length(choice: Choice) -> int:
    return choice.length or 0


def _is_too_short(case: FitCase, choice: Choice) -> bool:
    """Return whether the sequence length is too short to serve."""
    if choice.length is None or choice.length == case.demand.length:
        return False
    return case.demand.fixed or choice.length < case.rules.shortest_context


def least_read(case: FitCase, ranks: int = 1) -> int:
    """Return the bytes of weights that each device of a group of so many reads at least."""
    if ranks > NARROW and case.rules.wide_read:
        return case.rules.wide_read
    if case.space.aim == LATENCY:
        return READ_FOR_LATENCY
    return min(_READ_AT_MOST, int(_READ_BY_DEFAULT * case.memory.total))


def is_small(case: FitCase) -> bool:
    """Return whether a copy of the model takes so little of a device that, by default, each device gets one.

    Not in memory that a processor shares: it is large and slow, so that a copy takes long to read. A GB10 reads a
    quarter of its own in 0.1 s (273 GB/s), and guides for two of them have TP 2 also for models of 20 GiB
    (vllm-project/recipes, models/Qwen/Qwen3.6-27B.yaml; spark-arena/eugr-recipes, gemma4-26b-a4b).
    """
    return case.space.aim != LATENCY and case.rules.free is None and case.loaded < _SMALL * case.memory.total


def is_worthwhile(case: FitCase, split: Split) -> bool:
    """Return whether each device of a group has enough weights to read."""
    if split.world == 1 or case.rules.whole:
        return True
    return not is_small(case) and case.loaded // split.world >= least_read(case, split.world)


# --- the aims -------------------------------------------------------------------------------------------------------


def _choose_of_full_length(case: FitCase, fast: list[Choice]) -> Choice:
    """Return the best of the choices that have the full length."""
    enough = [choice for choice in fast if is_enough(case, choice)]
    advised = None if case.space.aim == LATENCY or is_small(case) else _find_advised_engines(case, enough)
    if advised:
        return advised
    if case.space.aim != THROUGHPUT:
        return _choose_widest_group(case, enough or fast)
    small = is_small(case) and not case.demand.requested
    full = [choice for choice in enough if small or holds_all(case, choice)]
    return _for_throughput(case, fast, full) if full else _choose_nearest_demand(case, fast)


def _find_advised_engines(case: FitCase, choices: list[Choice]) -> Choice | None:
    """Return the choice whose engines have the ranks that the vendor advises; None if there is no such one."""
    engines = [
        choice
        for choice in choices
        if choice.split.data > 1 and choice.split.pipeline == 1 and choice.room.weights <= case.rules.engine_weights
    ]
    of_ranks = {choice.split.tensor: choice for choice in engines if _count_used_devices(choice) == case.space.devices}
    ranks = next((ranks for ranks in case.rules.engine_ranks if ranks in of_ranks), 0)
    because = f"the vendor's guides for quantised experts have engines of {ranks} ranks that share them"
    return of_ranks[ranks]._replace(because=because) if ranks else None


def _for_throughput(case: FitCase, fast: list[Choice], full: list[Choice]) -> Choice:
    """Return the narrowest of the groups that hold all sequences, `full`, and leave the cache the rules' share.

    A stack's default number of sequences is a limit, not a demand: it splits no small model.
    """
    share = case.rules.cache_share
    most = f"leaves more than {share:.0%} of a device's memory to the KV cache"
    roomy = [choice for choice in full if leaves_enough(case, choice)]
    if not roomy:
        widest = max(full, key=lambda choice: choice.split.world)
        return widest._replace(because=f"--optimize throughput: no group {most}, and the widest leaves the most")
    best = max(roomy, key=lambda choice: (count_engine_groups(case, choice.split), choice.split.world))
    because = f"the weights and {_describe_kv_demand(case, best)} do not fit fewer devices" + f"; this {most}" * bool(
        share
    )
    if not holds_all(case, best):
        because = f"the weights take less than {_SMALL:.0%} of one device, so that engines are as narrow as possible"
    fullest = max(filter(partial(leaves_enough, case), fast), key=partial(_count_all_running, case))
    if not case.demand.requested and _count_all_running(case, fullest) >= _CLEARLY_MORE * _count_all_running(
        case, best
    ):
        best = fullest
        sequences = format_count(_count_all_running(case, best), "sequence")
        because = f"the engines run {sequences} of {case.demand.usual} tokens in all"
    return best._replace(because=f"--optimize throughput: {because}")


def leaves_enough(case: FitCase, choice: Choice) -> bool:
    """Return whether a choice leaves the KV cache the share of a device's memory that throughput needs."""
    return choice.room.left > case.rules.cache_share * case.memory.total or not case.rules.cache_share


def _count_all_running(case: FitCase, choice: Choice) -> int:
    """Return the usual sequences that all engines run at a time, each at most the stack's default."""
    per_engine = count_demanded_sequences(case, choice.split)
    sequences = count_held_sequences(case, choice)
    return count_engine_groups(case, choice.split) * (per_engine if sequences is None else min(per_engine, sequences))


def _select_fastest(case: FitCase, choices: list[Choice]) -> list[Choice]:
    """Return the choices over the fastest links; only those that use all devices, if they serve only together."""
    fast = _over_fastest_links(case, choices)
    complete_choices = [choice for choice in fast if _count_used_devices(choice) == case.space.devices]
    return complete_choices if case.rules.whole and complete_choices else fast


def _choose_widest_group(case: FitCase, fast: list[Choice]) -> Choice:
    """Return the widest group that is worth a split; a wider one if only that has room for all sequences."""
    worthwhile = [choice for choice in fast if is_worthwhile(case, choice.split)]
    best = max(worthwhile or fast[:1], key=lambda choice: _by_width(case, choice))
    wider = [choice for choice in fast if choice.split.world > best.split.world and is_enough(case, choice)]
    if wider and not is_enough(case, best):
        because = f"the weights and {_describe_kv_demand(case, best)} do not fit fewer devices"
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
        sequences = (
            f"the weights and {_describe_kv_demand(case, best)} do" if case.demand.requested else "the model does"
        )
        return f"{sequences} not fit fewer devices"
    least = gib(least_read(case, best.split.world))
    return f"as many devices as make answers faster: each reads {least} of weights or more for a token"


def _by_width(case: FitCase, choice: Choice) -> tuple[int, int]:
    """Return the order of groups: by their own size for latency, else first by the devices that serve."""
    split = choice.split
    return (split.tensor, split.data) if case.space.aim == LATENCY else (_count_used_devices(choice), split.tensor)


def _choose_nearest_demand(case: FitCase, fast: list[Choice]) -> Choice:
    """Return the choice with room for the most sequences, since none has room for all of them."""
    read = [choice for choice in fast if case.loaded // choice.split.world >= READ_FOR_LATENCY]
    most = _find_roomiest(read or fast[:1])
    return most._replace(because=f"no split holds {_describe_kv_demand(case, most)}, and this one holds the most")


def _find_roomiest(choices: list[Choice]) -> Choice:
    return max(choices, key=lambda choice: (choice.tokens or 0) * max(choice.split.data, choice.split.engines))


def _over_fastest_links(case: FitCase, choices: list[Choice]) -> list[Choice]:
    """Return the choices that use only the fastest links; else pipelines of the widest group and the fewest stages."""
    nearest = min(rate_split_links(choice.split, case.space) for choice in choices)
    near = [choice for choice in choices if rate_split_links(choice.split, case.space) == nearest]
    if nearest != 1:
        return near
    return [max(near, key=lambda choice: (choice.split.tensor, _count_used_devices(choice), -choice.split.pipeline))]


def _count_used_devices(choice: Choice) -> int:
    return choice.split.world * choice.split.data


def _describe_kv_demand(case: FitCase, choice: Choice) -> str:
    """Return the demanded KV cache, as a part of a reason."""
    if count_held_sequences(case, choice) is None:
        return "a KV cache"
    default = "" if case.demand.requested else ", the stack's default,"
    return f"the KV cache of {format_count(case.demand.concurrency, 'sequence')}{default} of {case.demand.usual} tokens"
