"""The graphs that a Gaudi server compiles during warm-up, and the variables that define them. Pure.

The rules are from set_bucketing in the fork's scripts/utils.sh (aice/v1.21.0, and aice/v1.22.0 at 1dd4da7ab with
ranges, at 17a7946f without), and vllm-gaudi's docs/features/bucketing_mechanism.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.folders import compute_short_digest
from entrypoints.core.parse import is_number
from entrypoints.core.records import Value
from entrypoints.decide.records import Thresholds
from entrypoints.decide.shapes.buckets import (
    LONG,
    Buckets,
    Range,
    count_decode_graphs,
    count_doublings,
    make_exponential_buckets,
    make_limited_buckets,
    make_linear_buckets,
    prompt_graphs,
)
from entrypoints.decide.shapes.histogram import (
    Sizes,
    best_linear,
    blocks_held,
    compare_spacings,
    compute_padding_share,
    decode_sizes,
    describe_spacings,
    find_optimal_buckets,
    prompt_sizes,
    split_prompts,
)
from entrypoints.request.intents import Intents

BLOCK = 128
"""Tokens of one KV block, with which the matrix engine is fully used."""

SHAPES = (("PROMPT", "BS"), ("PROMPT", "SEQ"), ("DECODE", "BS"), ("DECODE", "BLOCK"))
"""Phase and dimension of the twelve variables: each has MIN, STEP and MAX."""


class GraphDemand(NamedTuple):
    """The requests that the server must have graphs for."""

    length: int
    """Effective --max-model-len."""
    sequences: int
    """Effective --max-num-seqs."""
    prompts: int
    """Prompts in one step."""
    budget: int
    """Effective --max-num-batched-tokens."""
    intents: Intents
    kv_blocks: int | None
    """KV blocks that fit; None if unknown."""
    block: int = BLOCK
    """Tokens of one KV block."""
    whole: bool = True
    """Whether one step computes a whole prompt; else a piece of at most the budget, with the blocks before it."""


class Warmup(NamedTuple):
    """The chosen variables, and the resulting number of graphs."""

    values: Mapping[str, Value]
    graphs: int
    files: Mapping[str, str]
    """Name → text of a file that a value refers to."""


class Ranges(NamedTuple):
    """The range of buckets in each dimension."""

    prompts: Range
    lengths: Range
    batches: Range
    blocks: Range


def round_up(size: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-size // step) * step


def choose_graphs(demand: GraphDemand, thresholds: Thresholds, env: Mapping[str, str]) -> Warmup:
    """Choose how buckets are spaced, and their variables; the user's own variables are kept."""
    ways = thresholds.words("bucket_ways")
    ranges = _override_ranges(_limited_to_usual(demand, _compute_manual_ranges(demand, thresholds)), env)
    if env.get("VLLM_BUCKETING_FROM_FILE"):
        return Warmup({}, 0, {})
    if demand.intents.workload and not _has_bucket_variables(env):
        return _for_lengths(demand, ranges, ways, thresholds)
    if demand.intents.input is None and demand.intents.hot is None and not _has_bucket_variables(env):
        return _for_anything(demand, ranges, ways)
    if "pad" in ways:
        return _make_limited_warmup(demand, ranges, thresholds)
    linear = _linear_graphs(demand, ranges)
    if "linear" not in ways or ("exponential" in ways and _too_many(linear, demand, ranges, thresholds, env)):
        why = f"linear buckets for these lengths need {linear} graphs"
        if demand.intents.hot:
            why = f"--hot-spot changes nothing: up to its end {why}, and exponential ones have no end"
        return _make_exponential_warmup(demand, ranges, ways, why)
    return _make_linear_warmup(demand, ranges, ways, "the manual's rule for these lengths")


def _too_many(linear: int, demand: GraphDemand, ranges: Ranges, thresholds: Thresholds, env: Mapping[str, str]) -> bool:
    """Return whether exponential buckets are better than this number of linear graphs.

    A hot spot is named for a short warm-up, so the smaller number counts. The exponential buckets cover all lengths:
    vllm-hpu-extension does not take the end of a range for them (bucketing/exponential.py, read_bucket_settings).
    """
    if demand.intents.hot is None:
        return linear > thresholds.whole("graphs_at_most")
    return not _has_bucket_variables(env) and _exponential_graphs(demand, ranges) < linear


def _for_lengths(demand: GraphDemand, ranges: Ranges, ways: tuple[str, ...], thresholds: Thresholds) -> Warmup:
    """Choose buckets from the lengths of recorded requests."""
    if "file" in ways:
        return _from_lengths(demand, ranges, thresholds)
    return _make_linear_warmup(demand, _fit_linear_ranges(demand, ranges), ways, _why_fitted(demand, ranges))


def _for_anything(demand: GraphDemand, ranges: Ranges, ways: tuple[str, ...]) -> Warmup:
    """Choose buckets if the lengths of requests are unknown."""
    why = "the lengths of requests are unknown"
    if "exponential" in ways:
        return _make_exponential_warmup(demand, ranges, ways, why)
    return _make_linear_warmup(demand, _widen_steps(ranges), ways, f"{why}, so each dimension has about sixteen steps")


def _has_bucket_variables(env: Mapping[str, str]) -> bool:
    """Return whether the user set any of the twelve variables."""
    return any(f"VLLM_{phase}_{size}_BUCKET_{end}" in env for phase, size in SHAPES for end in ("MIN", "STEP", "MAX"))


# --- ranges ---------------------------------------------------------------------------------------------------------


def _compute_manual_ranges(demand: GraphDemand, thresholds: Thresholds) -> Ranges:
    """Return the manual's ranges: prompts of --input-range or up to the model's length; steps of 1/16 of the batch."""
    spare = thresholds.whole("spare_blocks")
    prompt, answer = demand.intents.input or (1, demand.length), demand.intents.output
    longest = prompt[1] + answer[1] if demand.intents.input and answer else demand.length
    step = thresholds.whole("decode_step") or min(-(-demand.sequences // 16), 16)
    batch = round_up(demand.sequences, step)
    blocks = round_up((-(-longest // demand.block) + spare) * batch, BLOCK)
    first = round_up(max(1, -(-prompt[0] // demand.block)), BLOCK)
    return Ranges(
        Range(1, 1, demand.prompts),
        _prompt_range(demand, prompt, spare),
        Range(1, step, batch),
        Range(first, BLOCK, max(first, blocks)),
    )


def _prompt_range(demand: GraphDemand, prompt: tuple[int, int], spare: int) -> Range:
    """Return the range of prompts, or of their pieces."""
    first, last = round_up(prompt[0], BLOCK), round_up(prompt[1], BLOCK) + spare * BLOCK
    if demand.whole:
        return Range(first, BLOCK, last)
    return Range(min(first, demand.budget), BLOCK, min(last, round_up(demand.budget, BLOCK)))


def _limited_to_usual(demand: GraphDemand, ranges: Ranges) -> Ranges:
    """Limit the ranges to the usual requests, as -r of the 1.21 script; graphs of others are compiled on demand."""
    if demand.intents.hot is None:
        return ranges
    sequences, tokens = demand.intents.hot
    answer = demand.intents.output[1] if demand.intents.output else 0
    batch = min(round_up(sequences, ranges.batches.step), ranges.batches.last)
    blocks = round_up((tokens + answer) * sequences // demand.block, BLOCK)
    return ranges._replace(
        lengths=ranges.lengths._replace(
            last=max(ranges.lengths.first, min(round_up(tokens, BLOCK), ranges.lengths.last))
        ),
        batches=ranges.batches._replace(last=batch),
        blocks=ranges.blocks._replace(last=max(ranges.blocks.first, min(blocks, ranges.blocks.last))),
    )


def _override_ranges(ranges: Ranges, env: Mapping[str, str]) -> Ranges:
    """Return the ranges with the user's own values."""
    return Ranges(
        *(
            _read_user_range(spread, f"VLLM_{phase}_{size}_BUCKET", env)
            for spread, (phase, size) in _pair_with_shapes(ranges)
        )
    )


def _pair_with_shapes(ranges: Ranges) -> zip[tuple[Range, tuple[str, str]]]:
    return zip(ranges, SHAPES, strict=True)


def _read_user_range(spread: Range, prefix: str, env: Mapping[str, str]) -> Range:
    first, step, last = (
        int(env[f"{prefix}_{end}"]) if is_number(env.get(f"{prefix}_{end}", "")) else size
        for end, size in zip(("MIN", "STEP", "MAX"), spread, strict=True)
    )
    return Range(first, max(1, step), max(first, last))


def _widen_steps(ranges: Ranges) -> Ranges:
    """Return the ranges with steps of a sixteenth of long dimensions."""
    return Ranges(
        ranges.prompts,
        ranges.lengths._replace(step=round_up(max(BLOCK, ranges.lengths.last // 16), BLOCK)),
        ranges.batches,
        ranges.blocks._replace(step=round_up(max(BLOCK, ranges.blocks.last // 16), BLOCK)),
    )


# --- ways -----------------------------------------------------------------------------------------------------------


def _make_linear_warmup(demand: GraphDemand, ranges: Ranges, ways: tuple[str, ...], because: str) -> Warmup:
    """Set the twelve variables of linear buckets."""
    graphs = _linear_graphs(demand, ranges)
    values = _make_bucket_variables(ranges, _explain_ranges(demand, ranges, because))
    if "exponential" in ways:
        why = f"{because}: {graphs} graphs"
        instead = ("true: the buckets depend only on the model's length, not on the requests",)
        values = {"VLLM_EXPONENTIAL_BUCKETING": Value("false", why, instead), **values}
    return Warmup(values, graphs, {})


def _explain_ranges(demand: GraphDemand, ranges: Ranges, why: str) -> tuple[str, ...]:
    usual = "all sequences had the maximum length"
    if demand.intents.hot:
        usual = "{} sequences had {} tokens".format(*demand.intents.hot)
    return (
        f"{why}: up to {ranges.prompts.last} prompts in one step",
        f"{why}: prompts of {ranges.lengths.first} to {ranges.lengths.last} tokens, in KV blocks of {BLOCK}",
        f"{why}: up to {ranges.batches.last} sequences, in steps of a sixteenth",
        f"{why}: {ranges.blocks.last} KV blocks if {usual}",
    )


def _make_bucket_variables(ranges: Ranges, because: tuple[str, ...], dimension: str = "SEQ") -> dict[str, Value]:
    values: dict[str, Value] = {}
    for (spread, (phase, size)), why in zip(_pair_with_shapes(ranges), because, strict=True):
        name = f"VLLM_{phase}_{dimension if size == 'SEQ' else size}_BUCKET"
        values |= {
            f"{name}_{end}": Value(str(number), why) for end, number in zip(("MIN", "STEP", "MAX"), spread, strict=True)
        }
    return values


def _linear_graphs(demand: GraphDemand, ranges: Ranges) -> int:
    return _count_graphs(demand, *(make_linear_buckets(spread) for spread in ranges))


def _count_graphs(demand: GraphDemand, prompts: Buckets, lengths: Buckets, batches: Buckets, blocks: Buckets) -> int:
    before = prompt_graphs(prompts, lengths, demand.budget)
    pieces = sum(len(_list_context_sizes(demand, length)) for _, length in before)
    return pieces + count_decode_graphs(batches, blocks, demand.kv_blocks)


def _make_exponential_warmup(demand: GraphDemand, ranges: Ranges, ways: tuple[str, ...], why: str) -> Warmup:
    """Let vLLM space the buckets exponentially, without ranges."""
    graphs, linear = _exponential_graphs(demand, ranges), _linear_graphs(demand, ranges)
    instead = (
        f"linear: {linear} graphs; --input-range and --output-range reduce them",
        *_explain_no_padding_limit(ways),
    )
    if "pad" in ways:
        return Warmup({"VLLM_BUCKETING_STRATEGY": Value("exp", f"{why}: {graphs} graphs", instead)}, graphs, {})
    return Warmup({"VLLM_EXPONENTIAL_BUCKETING": Value("true", f"{why}: {graphs} graphs", instead)}, graphs, {})


def _exponential_graphs(demand: GraphDemand, ranges: Ranges) -> int:
    last = round_up(demand.length, BLOCK)
    most = demand.kv_blocks or ranges.blocks.last
    return _count_graphs(
        demand,
        make_exponential_buckets(Range(1, 1, demand.prompts), count_doublings(demand.prompts)),
        make_exponential_buckets(Range(BLOCK, BLOCK, last), count_doublings(last), long=last >= LONG),
        make_exponential_buckets(Range(1, 2, demand.sequences), count_doublings(demand.sequences)),
        make_exponential_buckets(Range(BLOCK, BLOCK, most), count_doublings(most)),
    )


def _explain_no_padding_limit(ways: tuple[str, ...]) -> tuple[str, ...]:
    """Return the reason against the fork's padding limit."""
    if "pad" in ways:
        return ()
    return ("a padding limit (VLLM_*_BUCKET_LIMIT): the pinned vllm-hpu-extension does not support it",)


def _make_limited_warmup(demand: GraphDemand, ranges: Ranges, thresholds: Thresholds) -> Warmup:
    """Set the ranges and padding limits of vllm-gaudi."""
    share = thresholds.number("padding_share")
    graphs = _count_graphs(demand, *(make_limited_buckets(spread, share) for spread in ranges))
    why = f"the lengths are known, and at most {share:.0%} of a bucket is padding: {graphs} graphs"
    instead = ("exp: its buckets depend only on the model's length", f"lin: {_linear_graphs(demand, ranges)} graphs")
    values = {"VLLM_BUCKETING_STRATEGY": Value("pad", why, instead)}
    values |= _make_bucket_variables(ranges, _explain_ranges(demand, ranges, "the given ranges"), "QUERY")
    percent = str(round(100 * share))
    values |= {
        f"VLLM_{phase}_{'QUERY' if size == 'SEQ' else size}_BUCKET_PAD_PERCENT": Value(percent, why)
        for phase, size in SHAPES
    }
    return Warmup(values, graphs, {})


# --- real lengths ---------------------------------------------------------------------------------------------------


def _fit_linear_ranges(demand: GraphDemand, ranges: Ranges) -> Ranges:
    """Return the linear ranges with the least padding for the recorded lengths, with the manual's number of graphs."""
    sizes = prompt_sizes(demand.intents.workload)
    lengths = best_linear(sizes, len(make_linear_buckets(ranges.lengths)), ranges.lengths._replace(first=BLOCK))
    block_sizes = decode_sizes(blocks_held(demand.intents.workload, demand.block), demand.sequences)
    blocks = best_linear(block_sizes, len(make_linear_buckets(ranges.blocks)), ranges.blocks)
    return ranges._replace(lengths=lengths, blocks=blocks)


def _why_fitted(demand: GraphDemand, ranges: Ranges) -> str:
    rows = compare_spacings(prompt_sizes(demand.intents.workload), ranges.lengths, 0.25)
    return f"the least padding for the lengths in {demand.intents.workload_file} ({describe_spacings(rows)})"


def _from_lengths(demand: GraphDemand, ranges: Ranges, thresholds: Thresholds) -> Warmup:
    """List every bucket in a file: the best for the recorded lengths, as many as with a padding limit."""
    share = thresholds.number("padding_share")
    sizes = split_prompts(prompt_sizes(demand.intents.workload), None if demand.whole else demand.budget)
    lengths = find_optimal_buckets(sizes, len(make_limited_buckets(ranges.lengths, share)), BLOCK, ranges.lengths.last)
    prompts = prompt_graphs(make_limited_buckets(ranges.prompts, share), lengths, demand.budget)
    lines, decodes = [], 0
    for batch, length in prompts:
        before = _list_context_sizes(demand, length)
        lines.append(f"({batch}, {length}, [{', '.join(map(str, before))}])")
        decodes += len(before) - 1
    running, count = (
        blocks_held(demand.intents.workload, demand.block),
        len(make_limited_buckets(ranges.blocks, share)),
    )
    for batch in make_limited_buckets(ranges.batches, share):
        blocks = _blocks_of(demand, ranges, decode_sizes(running, batch), batch, count)
        lines.append(f"({batch}, 1, [{', '.join(map(str, blocks))}])")
        decodes += len(blocks)
    rows = compare_spacings(sizes, ranges.lengths, share)
    padding = compute_padding_share(lengths, sizes)
    because = f"{padding:.1%} padding for the lengths in {demand.intents.workload_file}; {describe_spacings(rows)}"
    text = "".join(f"{line}\n" for line in lines)
    name = f"buckets-{compute_short_digest(text)}.txt"
    instead = ("exp, lin, pad: consider only the shortest and the longest request",)
    return Warmup({"VLLM_BUCKETING_FROM_FILE": Value(name, because, instead)}, len(prompts) + decodes, {name: text})


def _list_context_sizes(demand: GraphDemand, length: int) -> Buckets:
    """Return the numbers of blocks that can precede a piece of a prompt: none, and doublings up to the longest."""
    most = (demand.length - length) // demand.block
    if demand.whole or most < 1:
        return (0,)
    return (0, *make_linear_buckets(Range(1, most, most)))


def _blocks_of(demand: GraphDemand, ranges: Ranges, sizes: Sizes, batch: int, count: int) -> Buckets:
    """Return at most `count` best numbers of blocks for a batch; the last holds the batch at its maximum length."""
    most = min(ranges.blocks.last, round_up(-(-demand.length // demand.block) * batch, BLOCK))
    if demand.kv_blocks is not None:
        most = min(most, round_up(demand.kv_blocks, BLOCK))
    within = {min(size, most): often for size, often in sizes.items()}
    return find_optimal_buckets(within, max(2, count // 2), min(BLOCK, max(1, batch)), max(batch, most))
