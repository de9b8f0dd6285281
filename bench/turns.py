"""Measure alternately: ours, theirs, ours, theirs, so that other load on the machine affects both. IO."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from bench.records import Figure, Unit
from drydock.core.console import log

Measure = Callable[[], float]


def timed(work: Callable[[], object]) -> float:
    """Run `work`; return its duration in seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turns(measures: Mapping[str, Measure], rounds: int, unit: Unit) -> dict[str, Figure]:
    """Call each measure once per round, in reverse order every second round; return their figures."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    order = list(measures)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            values[name].append(round(measures[name](), 6))
            log(f"round {number + 1} of {rounds}: {name}: {values[name][-1]:.6g} {unit}")
    return {name: Figure(unit=unit, values=tuple(each)) for name, each in values.items()}
