"""The entrypoint's own time, from process start to vLLM's start. Needs no image. IO."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench import startup
from bench.bench_records import Figure, Goal, Measurement
from drydock.core.console import log

START = Goal(compares="ours", sense="at most", limit=100)
STARTS = 3
"""In each round: one takes milliseconds."""


def measure_tool(rounds: int) -> Iterator[Measurement]:
    """Compare the entrypoint on recorded hosts, from process start to vLLM's start, with the bare interpreter."""
    for machine in startup.MACHINES:
        starts = zip(*startup.measure_each_start(rounds * STARTS, machine), strict=True)
        interpreter, least, whole, *_ = starts
        log(f"entrypoint on {machine}: {min(whole):.0f} ms, bare interpreter {min(interpreter):.0f} ms")
        yield Measurement(
            what=f"entrypoint: process start → start of vLLM, {machine}",
            against="bare interpreter",
            goal=START,
            ours=_make_milliseconds(whole),
            theirs=_make_milliseconds(interpreter),
            command="python -m bench.startup",
            note=f"The lower limit is {statistics.median(least):.0f} ms: an entrypoint that only imports the same "
            "modules of the standard library.",
        )


def _make_milliseconds(values: tuple[float, ...]) -> Figure:
    return Figure(unit="ms", values=tuple(round(value, 2) for value in values))
