"""The buckets with the least padding for recorded request lengths and a given number of graphs. Pure.

The vendors' rules for spacing buckets use only the shortest and the longest request. With a histogram, the best choice
is a shortest-path problem: select `count` of the occurring sizes, rounded up to a step, so that the total padding is
minimal. Dynamic programming solves it exactly; the costs satisfy the quadrangle inequality, so divide and conquer takes
n·log n for each bucket instead of n².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from entrypoints.decide.shapes.buckets import (
    Buckets,
    Range,
    count_doublings,
    find_bucket,
    make_exponential_buckets,
    make_limited_buckets,
    make_linear_buckets,
)
from entrypoints.request.intents import Request

Sizes = Mapping[int, float]
"""Size → how often it occurs."""

_SPREAD = 4.0
"""A sum over many sequences stays within this number of standard deviations of its mean."""


class Spacing(NamedTuple):
    """One way of spacing buckets, with its padding for the recorded sizes."""

    name: str
    buckets: Buckets
    padding: float
    """Padding's share of the computed tokens."""
    best: float
    """The padding of the best buckets of the same number."""


# --- sizes ----------------------------------------------------------------------------------------------------------


def prompt_sizes(requests: Iterable[Request]) -> dict[int, float]:
    """Return how often each prompt length occurs."""
    sizes: dict[int, float] = {}
    for prompt, _, often in requests:
        sizes[prompt] = sizes.get(prompt, 0.0) + often
    return sizes


def split_prompts(sizes: Sizes, budget: int | None) -> dict[int, float]:
    """Return the pieces of prompts, of at most `budget` tokens each; None keeps prompts whole."""
    if budget is None:
        return dict(sizes)
    piece_counts: dict[int, float] = {}
    for size, often in sizes.items():
        full, rest = divmod(size, budget)
        for piece, count in ((budget, full), (rest, 1)):
            if piece and count:
                piece_counts[piece] = piece_counts.get(piece, 0.0) + often * count
    return piece_counts


class Running(NamedTuple):
    """KV blocks that one running sequence holds, over all steps of all answers."""

    mean: float
    variance: float


def decode_sizes(running: Running, batch: int) -> dict[int, float]:
    """Return how often each number of KV blocks is in use by a batch, each sequence at a random point of its answer.

    Sequences with long answers run more often; the sum over the batch is nearly normal (central limit theorem).
    """
    middle, deviation = batch * running.mean, math.sqrt(batch * running.variance)
    low = max(batch, math.floor(middle - _SPREAD * deviation))
    high = max(low, math.ceil(middle + _SPREAD * deviation))
    width = max(1, (high - low) // 256)
    edges = range(low, high + width, width)
    sizes = {
        edge: _compute_normal_share(edge, middle, deviation) - _compute_normal_share(edge - width, middle, deviation)
        for edge in edges
    }
    return {size: often for size, often in sizes.items() if often > 0} or {high: 1.0}


def _compute_normal_share(value: float, middle: float, deviation: float) -> float:
    """Return the share of a normal distribution below a value."""
    if not deviation:
        return float(value >= middle)
    return 0.5 * (1 + math.erf((value - middle) / (deviation * math.sqrt(2))))


def blocks_held(requests: Iterable[Request], block: int) -> Running:
    """Return mean and variance of the blocks that one running sequence holds."""
    steps = total = squares = 0.0
    for prompt, answer, often in requests:
        first, last = prompt // block, (prompt + answer) // block
        for count in range(first, last + 1):
            steps_in_block = min(prompt + answer, (count + 1) * block) - max(prompt, count * block)
            steps += often * steps_in_block
            total += often * steps_in_block * (count + 1)
            squares += often * steps_in_block * (count + 1) ** 2
    if not steps:
        return Running(0.0, 0.0)
    return Running(total / steps, max(0.0, squares / steps - (total / steps) ** 2))


# --- choosing -------------------------------------------------------------------------------------------------------


def find_optimal_buckets(sizes: Sizes, count: int, step: int, last: int = 0) -> Buckets:
    """Return at most `count` buckets, multiples of `step`, with the least padding; the last holds all sizes."""
    grouped = _group_by_step(sizes, step)
    if last:
        grouped.setdefault(_round_up_size(last, step), (0.0, 0.0))
    edges = sorted(grouped)
    if count >= len(edges):
        return tuple(edges)
    often, weight = [0.0], [0.0]
    for edge in edges:
        often.append(often[-1] + grouped[edge][0])
        weight.append(weight[-1] + grouped[edge][1])

    def cost(before: int, until: int) -> float:
        """Return the total padding of the sizes after the first `before` edges, up to the `until`-th."""
        return edges[until - 1] * (often[until] - often[before]) - (weight[until] - weight[before])

    rows = [[math.inf] * (len(edges) + 1)]
    rows[0][0] = 0.0
    choices: list[list[int]] = []
    for _ in range(max(1, count)):
        row, choice = [math.inf] * (len(edges) + 1), [0] * (len(edges) + 1)
        _improve_row(rows[-1], row, choice, cost, (1, len(edges), 0, len(edges) - 1))
        rows.append(row)
        choices.append(choice)
    return _trace_buckets(edges, rows, choices)


def _group_by_step(sizes: Sizes, step: int) -> dict[int, tuple[float, float]]:
    """Return for each multiple of `step` how often a size rounds up to it, and the sum of those sizes."""
    grouped: dict[int, tuple[float, float]] = {}
    for size, often in sizes.items():
        edge = _round_up_size(size, step)
        before = grouped.get(edge, (0.0, 0.0))
        grouped[edge] = before[0] + often, before[1] + often * size
    return grouped


def _improve_row(
    previous: list[float],
    row: list[float],
    choice: list[int],
    cost: Callable[[int, int], float],
    bounds: tuple[int, int, int, int],
) -> None:
    """Fill a row of the table by divide and conquer: a later edge's best predecessor is never an earlier one."""
    pending = [bounds]
    while pending:
        low, high, first, last = pending.pop()
        if low > high:
            continue
        middle = (low + high) // 2
        best, place = math.inf, first
        for before in range(first, min(middle - 1, last) + 1):
            value = previous[before] + cost(before, middle)
            if value < best:
                best, place = value, before
        row[middle], choice[middle] = best, place
        pending += [(low, middle - 1, first, place), (middle + 1, high, place, last)]


def _trace_buckets(edges: list[int], rows: list[list[float]], choices: list[list[int]]) -> Buckets:
    """Return the buckets of the best row; of rows with equal padding, the one with the fewest buckets."""
    end = len(edges)
    number = min(range(1, len(rows)), key=lambda count: (round(rows[count][end], 6), count))
    buckets: list[int] = []
    while number:
        buckets.append(edges[end - 1])
        number, end = number - 1, choices[number - 1][end]
    return tuple(sorted(buckets))


def best_linear(sizes: Sizes, count: int, spread: Range) -> Range:
    """Return the linear range of at most `count` buckets with the least padding."""
    longest = max((spread.last, *sizes))
    edges = {
        edge: group[0] for edge, group in _group_by_step(sizes, spread.step).items()
    }  # far fewer sizes, ranked the same
    ranges = [
        Range(first, step, _round_up_size(longest, step))
        for step in range(spread.step, longest + spread.step, spread.step)
        for first in {spread.step, step}
    ]
    within = [spread for spread in ranges if len(make_linear_buckets(spread)) <= count] or ranges[-1:]
    return min(
        within,
        key=lambda spread: (
            compute_padding_share(make_linear_buckets(spread), edges),
            len(make_linear_buckets(spread)),
        ),
    )


def _round_up_size(size: float, step: int) -> int:
    return max(1, math.ceil(size / step)) * step


# --- measuring ------------------------------------------------------------------------------------------------------


def compute_padding_share(buckets: Buckets, sizes: Sizes) -> float:
    """Return padding's share of the computed tokens; a size beyond all buckets is computed unpadded."""
    computed = used_tokens = 0.0
    for size, often in sizes.items():
        bucket = find_bucket(size, buckets)
        computed += often * (size if bucket is None else bucket)
        used_tokens += often * size
    return 1 - used_tokens / computed if computed else 0.0


def compare_spacings(sizes: Sizes, spread: Range, share: float) -> tuple[Spacing, ...]:
    """Return the vendors' three ways of spacing, each with the best padding of the same number of buckets."""
    ways = {
        "linear": make_linear_buckets(spread),
        "padding-limited": make_limited_buckets(spread, share),
        "exponential": make_exponential_buckets(spread, count_doublings(spread.last)),
    }
    return tuple(
        Spacing(
            name,
            buckets,
            compute_padding_share(buckets, sizes),
            compute_padding_share(find_optimal_buckets(sizes, len(buckets), spread.step, spread.last), sizes),
        )
        for name, buckets in ways.items()
    )


def describe_spacings(spacings: Iterable[Spacing]) -> str:
    """Return each way's buckets and padding, with the best padding of the same number, as a part of a reason."""
    return "; ".join(
        f"{spacing.name}: {spacing.padding:.1%} padding with {len(spacing.buckets)} buckets, at best {spacing.best:.1%}"
        for spacing in spacings
    )
