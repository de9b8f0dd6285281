"""How much of what Gaudi computes is padding: buckets that fit recorded lengths, beside the vendor's three ways.

The traces are counts of prompt lengths; bench/README.md says where they come from.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from bench.records import Figure, Goal, Measurement
from drydock.core.paths import ROOT
from entrypoints.decide.buckets import Buckets, Range, doublings, exponential, limited, linear
from entrypoints.decide.histogram import optimal, padding

STEP = 128
"""Tokens of a block on Gaudi: what every bucket is a multiple of."""
SHARE = 0.25
"""The padding limit of vllm-gaudi, as a share of a bucket."""
GOAL = Goal(compares="ratio", sense="at most", limit=0.75)
COMMAND = "./inv bench tool"
TRACES = {"conversation": "azure-2023-conversation.csv", "code": "azure-2023-code.csv"}


def rows() -> list[Measurement]:
    """Return a row for each trace and each of the vendor's ways of spacing as many buckets."""
    return [
        row
        for trace, file in TRACES.items()
        for sizes in (read_sizes(ROOT / "bench" / "workloads" / file),)
        for row in _rows(trace, sizes)
    ]


def read_sizes(path: Path) -> dict[int, float]:
    """Return how many requests have a prompt of each length, in tokens."""
    with path.open() as file:
        return {int(row["prompt_tokens"]): float(row["requests"]) for row in csv.DictReader(file)}


def _rows(trace: str, sizes: Mapping[int, float]) -> list[Measurement]:
    longest = -(-max(sizes) // STEP) * STEP
    spread = Range(STEP, STEP, longest)
    ways = {
        "exponential": exponential(spread, doublings(longest)),
        "padding-limited": limited(spread, SHARE),
    }
    ways["linear"] = evenly(spread, len(ways["exponential"]))
    return [_row(trace, name, sizes, spread, buckets) for name, buckets in ways.items()]


def evenly(spread: Range, count: int) -> Buckets:
    """Return `count` linear buckets: with the smallest step that makes no more of them."""
    steps = range(spread.step, spread.last + spread.step, spread.step)
    fits = (linear(Range(step, step, -(-spread.last // step) * step)) for step in steps)
    return next(buckets for buckets in fits if len(buckets) <= count)


def _row(trace: str, way: str, sizes: Mapping[int, float], spread: Range, theirs: Buckets) -> Measurement:
    ours = optimal(sizes, len(theirs), spread.step, spread.last)
    fewest = optimal(sizes, len(sizes), spread.step, spread.last)
    floor = _percent(fewest, sizes)
    note = (
        f"drydock's choice is optimal: no other {len(theirs)} multiples of {STEP} pad less. Even one graph for "
        f"each of the {len(fewest)} multiples that occur would pad {floor:.1f} %."
    )
    return Measurement(
        what=f"Gaudi buckets, {len(theirs)} graphs, prompts of the {trace} trace: share of padding",
        against=f"{way}, same number of graphs",
        goal=GOAL,
        ours=Figure(unit="%", values=(_percent(ours, sizes),)),
        theirs=Figure(unit="%", values=(_percent(theirs, sizes),)),
        command=COMMAND,
        note=note,
    )


def _percent(buckets: Buckets, sizes: Mapping[int, float]) -> float:
    return round(100 * padding(buckets, sizes), 3)
