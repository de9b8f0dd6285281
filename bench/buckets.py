"""The share of padding in Gaudi's work: buckets fitted to recorded prompt lengths, and the vendor's three methods.

The traces are counts of prompt lengths. See bench/README.md for their source.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from bench.records import Figure, Goal, Measurement
from drydock.core.paths import ROOT
from entrypoints.decide.shapes.buckets import Buckets, Range, doublings, exponential, limited, linear
from entrypoints.decide.shapes.histogram import optimal, padding

STEP = 128
"""Tokens per block on Gaudi. Every bucket is a multiple of it."""
SHARE = 0.25
"""The padding limit of vllm-gaudi, as a share of a bucket."""
GOAL = Goal(compares="ratio", sense="at most", limit=0.75)
COMMAND = "./inv bench tool"
TRACES = {"conversation": "azure-2023-conversation.csv", "code": "azure-2023-code.csv"}


def rows() -> list[Measurement]:
    """Return a row for each trace and each of the vendor's methods with the same number of buckets."""
    traces = {trace: read_sizes(ROOT / "bench" / "workloads" / file) for trace, file in TRACES.items()}
    return [row for trace, sizes in traces.items() for row in _rows(trace, sizes)]


def read_sizes(path: Path) -> dict[int, float]:
    """Read prompt length in tokens → number of requests."""
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
    """Return linear buckets with the smallest step that gives at most `count` of them."""
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
