"""The entrypoint's own time, from process start to vLLM's start. Needs no image. IO."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench import startup
from bench.bench_records import Figure, Measurement, ratio_at_most
from drydock.core.console import log

MOST_OF_LEAST = 3
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
            goal=ratio_at_most(
                round(MOST_OF_LEAST * statistics.median(least) / statistics.median(interpreter), 1),
                f"It is {MOST_OF_LEAST} times what an entrypoint takes that only imports the same modules of the "
                "standard library.",
            ),
            ours=_make_milliseconds(whole),
            theirs=_make_milliseconds(interpreter),
            command="python -m bench.startup",
        )


def _make_milliseconds(values: tuple[float, ...]) -> Figure:
    return Figure(unit="ms", values=tuple(round(value, 2) for value in values))
