"""Which graphs a Gaudi server compiles while it warms up, and the variables that say so. Pure.

The rules are those of set_bucketing in the fork's scripts/utils.sh (aice/v1.21.0, and aice/v1.22.0 at 1dd4da7ab with
ranges, at 17a7946f without), and vllm-gaudi's docs/features/bucketing_mechanism.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.cache.plan import short
from entrypoints.decide.records import Thresholds, Value
from entrypoints.decide.shapes import buckets as spaced
from entrypoints.decide.shapes import histogram as hist
from entrypoints.decide.shapes.buckets import Buckets, Range
from entrypoints.request.intents import Intents

BLOCK = 128
"""Tokens of one KV block: what the matrix engine is fully used with."""

SHAPES = (("PROMPT", "BS"), ("PROMPT", "SEQ"), ("DECODE", "BS"), ("DECODE", "BLOCK"))
"""Phase and dimension of the twelve variables: each has MIN, STEP and MAX."""


class Asked(NamedTuple):
    """What the server must be ready for."""

    length: int
    """--max-model-len in force."""
    sequences: int
    """--max-num-seqs in force."""
    prompts: int
    """Prompts in one step."""
    budget: int
    """--max-num-batched-tokens in force."""
    intents: Intents
    kv_blocks: int | None
    """That fit; None where nobody knows."""
    whole: bool = True
    """Whether a prompt is computed in one step; else in pieces of the budget, each with the blocks before it."""


class Warmup(NamedTuple):
    """What is chosen, and how many graphs that makes."""

    values: Mapping[str, Value]
    graphs: int
    files: Mapping[str, str]
    """Name → text of a file that a value refers to."""


class Ranges(NamedTuple):
    """Where each dimension's buckets begin and end."""

    prompts: Range
    lengths: Range
    batches: Range
    blocks: Range


def up(size: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-size // step) * step


def choose_graphs(asked: Asked, thresholds: Thresholds, env: Mapping[str, str]) -> Warmup:
    """Choose the way of spacing, and its values; whatever the user set among them counts."""
    ways = thresholds.words("bucket_ways")
    ranges = _overridden(_hot(asked, _ranges(asked, thresholds)), env)
    if env.get("VLLM_BUCKETING_FROM_FILE"):
        return Warmup({}, 0, {})
    if asked.intents.workload and not _set(env):
        return _for_lengths(asked, ranges, ways, thresholds)
    if asked.intents.input is None and asked.intents.hot is None and not _set(env):
        return _for_anything(asked, ranges, ways)
    if "pad" in ways:
        return _limited(asked, ranges, thresholds)
    linear = _linear_graphs(asked, ranges)
    many = linear > thresholds.whole("graphs_at_most") and asked.intents.hot is None
    if "linear" not in ways or ("exponential" in ways and many):
        return _exponential(asked, ranges, ways, f"linear buckets for these lengths make {linear} graphs")
    return _linear(asked, ranges, ways, "the manual's rule for these lengths")


def _for_lengths(asked: Asked, ranges: Ranges, ways: tuple[str, ...], thresholds: Thresholds) -> Warmup:
    """Choose by the lengths of real requests."""
    if "file" in ways:
        return _from_lengths(asked, ranges, thresholds)
    return _linear(asked, _fitted(asked, ranges), ways, _why_fitted(asked, ranges))


def _for_anything(asked: Asked, ranges: Ranges, ways: tuple[str, ...]) -> Warmup:
    """Choose where nothing is known of the lengths."""
    why = "nothing is known of the lengths"
    if "exponential" in ways:
        return _exponential(asked, ranges, ways, why)
    return _linear(asked, _wide(ranges), ways, f"{why}: about sixteen steps in each dimension")


def _set(env: Mapping[str, str]) -> bool:
    """Tell whether the user set any of the twelve variables."""
    return any(f"VLLM_{phase}_{size}_BUCKET_{end}" in env for phase, size in SHAPES for end in ("MIN", "STEP", "MAX"))


# --- ranges ---------------------------------------------------------------------------------------------------------


def _ranges(asked: Asked, thresholds: Thresholds) -> Ranges:
    """Return the manual's ranges: prompts as long as wished, or as the model allows; a step for 1/16 of the batch."""
    spare = thresholds.whole("spare_blocks")
    prompt, answer = asked.intents.input or (1, asked.length), asked.intents.output
    longest = prompt[1] + answer[1] if asked.intents.input and answer else asked.length
    step = thresholds.whole("decode_step") or min(-(-asked.sequences // 16), 16)
    batch = up(asked.sequences, step)
    blocks = up((-(-longest // BLOCK) + spare) * batch, BLOCK)
    first = up(max(1, -(-prompt[0] // BLOCK)), BLOCK)
    return Ranges(
        Range(1, 1, asked.prompts),
        _prompt_range(asked, prompt, spare),
        Range(1, step, batch),
        Range(first, BLOCK, max(first, blocks)),
    )


def _prompt_range(asked: Asked, prompt: tuple[int, int], spare: int) -> Range:
    """Return the range of prompts, or of their pieces."""
    first, last = up(prompt[0], BLOCK), up(prompt[1], BLOCK) + spare * BLOCK
    if asked.whole:
        return Range(first, BLOCK, last)
    return Range(min(first, asked.budget), BLOCK, min(last, up(asked.budget, BLOCK)))


def _hot(asked: Asked, ranges: Ranges) -> Ranges:
    """End the ranges at what most requests are like, as the 1.21 script's -r does; others compile when they come."""
    if asked.intents.hot is None:
        return ranges
    sequences, tokens = asked.intents.hot
    answer = asked.intents.output[1] if asked.intents.output else 0
    batch = min(up(sequences, ranges.batches.step), ranges.batches.last)
    blocks = up((tokens + answer) * sequences // BLOCK, BLOCK)
    return ranges._replace(
        lengths=ranges.lengths._replace(last=max(ranges.lengths.first, min(up(tokens, BLOCK), ranges.lengths.last))),
        batches=ranges.batches._replace(last=batch),
        blocks=ranges.blocks._replace(last=max(ranges.blocks.first, min(blocks, ranges.blocks.last))),
    )


def _overridden(ranges: Ranges, env: Mapping[str, str]) -> Ranges:
    """Put what the user set in the place of what would be chosen."""
    return Ranges(*(_one(each, f"VLLM_{phase}_{size}_BUCKET", env) for each, (phase, size) in _named(ranges)))


def _named(ranges: Ranges) -> zip[tuple[Range, tuple[str, str]]]:
    return zip(ranges, SHAPES, strict=True)


def _one(spread: Range, prefix: str, env: Mapping[str, str]) -> Range:
    first, step, last = (
        int(env[f"{prefix}_{end}"]) if env.get(f"{prefix}_{end}", "").isdigit() else size
        for end, size in zip(("MIN", "STEP", "MAX"), spread, strict=True)
    )
    return Range(first, max(1, step), max(first, last))


def _wide(ranges: Ranges) -> Ranges:
    """Take steps of a sixteenth where the range is long."""
    return Ranges(
        ranges.prompts,
        ranges.lengths._replace(step=up(max(BLOCK, ranges.lengths.last // 16), BLOCK)),
        ranges.batches,
        ranges.blocks._replace(step=up(max(BLOCK, ranges.blocks.last // 16), BLOCK)),
    )


# --- ways -----------------------------------------------------------------------------------------------------------


def _linear(asked: Asked, ranges: Ranges, ways: tuple[str, ...], because: str) -> Warmup:
    """State the twelve variables."""
    graphs = _linear_graphs(asked, ranges)
    values = _variables(ranges, _because(ranges, because))
    if "exponential" in ways:
        why = f"{because}: {graphs} graphs"
        instead = ("true: the buckets follow from the model's length alone, whatever is really asked",)
        values = {"VLLM_EXPONENTIAL_BUCKETING": Value("false", why, instead), **values}
    return Warmup(values, graphs, {})


def _because(ranges: Ranges, why: str) -> tuple[str, ...]:
    return (
        f"{why}: up to {ranges.prompts.last} prompts in one step",
        f"{why}: prompts of {ranges.lengths.first} to {ranges.lengths.last} tokens, in KV blocks of {BLOCK}",
        f"{why}: up to {ranges.batches.last} sequences, a sixteenth of them apart",
        f"{why}: {ranges.blocks.last} KV blocks if all sequences were at their longest",
    )


def _variables(ranges: Ranges, because: tuple[str, ...], dimension: str = "SEQ") -> dict[str, Value]:
    values: dict[str, Value] = {}
    for (spread, (phase, size)), why in zip(_named(ranges), because, strict=True):
        name = f"VLLM_{phase}_{dimension if size == 'SEQ' else size}_BUCKET"
        values |= {
            f"{name}_{end}": Value(str(number), why) for end, number in zip(("MIN", "STEP", "MAX"), spread, strict=True)
        }
    return values


def _linear_graphs(asked: Asked, ranges: Ranges) -> int:
    return _count(asked, *(spaced.linear(spread) for spread in ranges))


def _count(asked: Asked, prompts: Buckets, lengths: Buckets, batches: Buckets, blocks: Buckets) -> int:
    before = spaced.prompt_graphs(prompts, lengths, asked.budget)
    pieces = sum(len(_contexts(asked, length)) for _, length in before)
    return pieces + spaced.count_decode_graphs(batches, blocks, asked.kv_blocks)


def _exponential(asked: Asked, ranges: Ranges, ways: tuple[str, ...], why: str) -> Warmup:
    """Let vLLM space the buckets by doubling: it takes no ranges then."""
    last = up(asked.length, BLOCK)
    most = asked.kv_blocks or ranges.blocks.last
    graphs = _count(
        asked,
        spaced.exponential(Range(1, 1, asked.prompts), spaced.doublings(asked.prompts)),
        spaced.exponential(Range(BLOCK, BLOCK, last), spaced.doublings(last), long=last >= spaced.LONG),
        spaced.exponential(Range(1, 2, asked.sequences), spaced.doublings(asked.sequences)),
        spaced.exponential(Range(BLOCK, BLOCK, most), spaced.doublings(most)),
    )
    linear = _linear_graphs(asked, ranges)
    instead = (f"linear: {linear} graphs; --input-range and --output-range narrow it", *_limit(ways))
    if "pad" in ways:
        return Warmup({"VLLM_BUCKETING_STRATEGY": Value("exp", f"{why}: {graphs} graphs", instead)}, graphs, {})
    return Warmup({"VLLM_EXPONENTIAL_BUCKETING": Value("true", f"{why}: {graphs} graphs", instead)}, graphs, {})


def _limit(ways: tuple[str, ...]) -> tuple[str, ...]:
    """Say why the fork's padding limit is not set."""
    if "pad" in ways:
        return ()
    return ("a padding limit (VLLM_*_BUCKET_LIMIT): the pinned vllm-hpu-extension does not know it",)


def _limited(asked: Asked, ranges: Ranges, thresholds: Thresholds) -> Warmup:
    """State ranges and padding limits, as vllm-gaudi takes them."""
    share = thresholds.number("padding_share")
    graphs = _count(asked, *(spaced.limited(spread, share) for spread in ranges))
    why = f"lengths are known, and no more than {share:.0%} of a bucket is padding: {graphs} graphs"
    instead = ("exp: its buckets follow from the model's length alone", f"lin: {_linear_graphs(asked, ranges)} graphs")
    values = {"VLLM_BUCKETING_STRATEGY": Value("pad", why, instead)}
    values |= _variables(ranges, _because(ranges, "what was wished for"), "QUERY")
    percent = str(round(100 * share))
    values |= {
        f"VLLM_{phase}_{'QUERY' if size == 'SEQ' else size}_BUCKET_PAD_PERCENT": Value(percent, why)
        for phase, size in SHAPES
    }
    return Warmup(values, graphs, {})


# --- real lengths ---------------------------------------------------------------------------------------------------


def _fitted(asked: Asked, ranges: Ranges) -> Ranges:
    """Choose the linear ranges that pad the real lengths least, with no more graphs than the manual's."""
    sizes = hist.prompt_sizes(asked.intents.workload)
    lengths = hist.best_linear(sizes, len(spaced.linear(ranges.lengths)), ranges.lengths._replace(first=BLOCK))
    held = hist.decode_sizes(hist.blocks_held(asked.intents.workload, BLOCK), asked.sequences)
    blocks = hist.best_linear(held, len(spaced.linear(ranges.blocks)), ranges.blocks)
    return ranges._replace(lengths=lengths, blocks=blocks)


def _why_fitted(asked: Asked, ranges: Ranges) -> str:
    rows = hist.compared(hist.prompt_sizes(asked.intents.workload), ranges.lengths, 0.25)
    return f"least padding of the lengths in {asked.intents.workload_file} ({hist.told(rows)})"


def _from_lengths(asked: Asked, ranges: Ranges, thresholds: Thresholds) -> Warmup:
    """State every bucket in a file: the best ones for the real lengths, as many as a padding limit would take."""
    share = thresholds.number("padding_share")
    sizes = hist.pieces(hist.prompt_sizes(asked.intents.workload), None if asked.whole else asked.budget)
    lengths = hist.optimal(sizes, len(spaced.limited(ranges.lengths, share)), BLOCK, ranges.lengths.last)
    prompts = spaced.prompt_graphs(spaced.limited(ranges.prompts, share), lengths, asked.budget)
    lines, decodes = [], 0
    for batch, length in prompts:
        before = _contexts(asked, length)
        lines.append(f"({batch}, {length}, [{', '.join(map(str, before))}])")
        decodes += len(before) - 1
    running, count = hist.blocks_held(asked.intents.workload, BLOCK), len(spaced.limited(ranges.blocks, share))
    for batch in spaced.limited(ranges.batches, share):
        blocks = _blocks_of(asked, ranges, hist.decode_sizes(running, batch), (batch, count))
        lines.append(f"({batch}, 1, [{', '.join(map(str, blocks))}])")
        decodes += len(blocks)
    rows = hist.compared(sizes, ranges.lengths, share)
    padding = hist.padding(lengths, sizes)
    because = f"{padding:.1%} padding for the lengths in {asked.intents.workload_file}; {hist.told(rows)}"
    text = "".join(f"{line}\n" for line in lines)
    name = f"buckets-{short(text)}.txt"
    instead = ("exp, lin, pad: know the shortest and the longest request only",)
    return Warmup({"VLLM_BUCKETING_FROM_FILE": Value(name, because, instead)}, len(prompts) + decodes, {name: text})


def _contexts(asked: Asked, length: int) -> Buckets:
    """Return how many blocks may stand before a piece of a prompt: none, and doublings up to the longest."""
    most = (asked.length - length) // BLOCK
    if asked.whole or most < 1:
        return (0,)
    return (0, *spaced.linear(Range(1, most, most)))


def _blocks_of(asked: Asked, ranges: Ranges, sizes: hist.Sizes, wanted: tuple[int, int]) -> Buckets:
    """Return the best numbers of blocks for one batch, at most so many; the last one holds it at its longest."""
    batch, count = wanted
    most = min(ranges.blocks.last, up(-(-asked.length // BLOCK) * batch, BLOCK))
    if asked.kv_blocks is not None:
        most = min(most, up(asked.kv_blocks, BLOCK))
    within = {min(size, most): often for size, often in sizes.items()}
    return hist.optimal(within, max(2, count // 2), min(BLOCK, max(1, batch)), max(batch, most))
