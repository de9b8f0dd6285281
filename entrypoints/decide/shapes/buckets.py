"""The shapes that graphs are compiled for: buckets of sizes, and the number of graphs. Pure.

A request is padded to the next bucket: few buckets waste computation, and many take long to compile. Three ways to
space buckets are in use, and each is implemented here as in its source: linear with a ramp-up
(vllm-hpu-extension's linear.py), linear within a padding limit (vllm-gaudi's padding_aware.py, and pull request 371 of
vllm-hpu-extension before it), exponential (exponential.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

LONG = 8192
"""Tokens from which vllm-hpu-extension's exponential spacing has an evenly spaced upper half."""


class Range(NamedTuple):
    """The first bucket, the step between buckets, and the last bucket."""

    first: int
    step: int
    last: int


Buckets = tuple[int, ...]
"""Sizes in ascending order."""

Graph = tuple[int, int]
"""Sequences in the batch, and what each is padded to: tokens of a prompt, or KV blocks of the whole batch."""


# --- spacing --------------------------------------------------------------------------------------------------------


def make_linear_buckets(spread: Range) -> Buckets:
    """Double from the first up to the step, then add the step: (2, 32, 64) gives 2, 4, 8, 16, 32, 64."""
    stable = range(spread.step, spread.last + 1, spread.step)
    return tuple(size for size in (*_double_to_step(spread), *stable) if size >= spread.first)


def _double_to_step(spread: Range) -> Iterator[int]:
    size = max(1, spread.first)
    while size < spread.step and size <= spread.last:
        yield size
        size *= 2


def make_limited_buckets(spread: Range, share: float, most: int | None = None) -> Buckets:
    """Return linear buckets without those that are not needed to limit padding to a share of a bucket, and to `most`.

    A share of 0 keeps all buckets, 0.5 is nearly exponential. The last size is always a bucket, and so is each multiple
    of `most`.
    """
    ramp = _make_ramp(spread)
    buckets = list(ramp)
    size = buckets[-1] + spread.step if buckets[-1] >= spread.step else spread.step
    if size - buckets[-1] < spread.step:
        size = buckets[-1] + spread.step
    limit = most or spread.last
    while size <= spread.last:
        following = size + spread.step
        padding = following - buckets[-1] - 1
        if padding / following > share or padding > limit or size % limit == 0:
            buckets.append(size)
        size = following
    return tuple(buckets) if buckets[-1] == spread.last else (*buckets, spread.last)


def _make_ramp(spread: Range) -> list[int]:
    """Return the first size and its doublings, up to the first at or above the step."""
    sizes = [spread.first]
    while sizes[-1] <= spread.step and max(1, sizes[-1] * 2) <= spread.last:
        sizes.append(max(1, sizes[-1] * 2))
    return sizes


def make_exponential_buckets(spread: Range, count: int, *, fill: bool = True, long: bool = False) -> Buckets:
    """Space `count` buckets by a constant factor, rounded up to steps.

    If two buckets round to the same step and `fill` is true, the second takes the nearest free step. `long` spaces the
    upper half evenly, as vllm-hpu-extension does for prompts from LONG tokens.
    """
    if count <= 1 or spread.last <= spread.first:
        return (spread.last,)
    steep = count // 2 if long else count
    top = spread.last / count if long else float(spread.last)
    sizes: set[int] = set()
    for number in range(steep):
        ideal = spread.first * (top / spread.first) ** (1.0 / max(1, steep - 1) * number)
        sizes.add(_find_free_step(ideal, spread, sizes) if fill else _round_up_to_step(ideal, spread))
    even = count - steep
    sizes.update(_round_up_to_step(top + (spread.last - top) / even * number, spread) for number in range(1, even + 1))
    return tuple(sorted({*sizes, spread.last}))


def count_doublings(last: int) -> int:
    """Return the number of exponential buckets up to a size: one for each doubling, and the first."""
    return math.ceil(math.log2(max(1, last))) + 1


def _round_up_to_step(ideal: float, spread: Range) -> int:
    return min(spread.last, math.ceil(ideal / spread.step) * spread.step)


def _find_free_step(ideal: float, spread: Range, taken_sizes: set[int]) -> int:
    """Return the step above, or the nearest free one; the step above if none is free."""
    above = _round_up_to_step(ideal, spread)
    if above not in taken_sizes:
        return above
    steps = [size for size in range(spread.first, spread.last + 1, spread.step) if size not in taken_sizes]
    return min(steps, key=lambda size: abs(size - ideal)) if steps else above


def find_bucket(size: int, buckets: Buckets) -> int | None:
    """Return the smallest bucket that holds a size; None if no bucket does."""
    from bisect import bisect_left

    place = bisect_left(buckets, size)
    return buckets[place] if place < len(buckets) else None


# --- graphs ---------------------------------------------------------------------------------------------------------


def prompt_graphs(batches: Buckets, lengths: Buckets, budget: int) -> tuple[Graph, ...]:
    """Return the prompt graphs: each batch with each length, within the tokens of one step.

    If the budget excludes all graphs, all are returned, as in vllm-hpu-extension.
    """
    every = tuple((batch, length) for batch in batches for length in lengths)
    return tuple(graph for graph in every if graph[0] * graph[1] <= budget) or every


def count_decode_graphs(batches: Buckets, blocks: Buckets, most: int | None = None) -> int:
    """Return the number of decode graphs: each batch with at least as many blocks as sequences.

    Numbers of blocks above `most` become one graph with `most` blocks. The graphs are counted and not listed, because
    linear buckets make tens of thousands.
    """
    from bisect import bisect_left

    below = blocks if most is None else blocks[: bisect_left(blocks, most)]
    capped = len(below) < len(blocks)
    return sum(len(below) - bisect_left(below, batch) + capped for batch in batches)
