"""Measure alternately: ours, theirs, ours, theirs, so that other load on the machine affects both. IO."""

from __future__ import annotations

import resource
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


def processor(work: Callable[[], object]) -> float:
    """Run `work`, which starts other processes; return their user and system CPU time in seconds.

    If the work never waits, this is its duration on an idle machine, even when measured on a busy one.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def in_turns(measures: Mapping[str, Measure], rounds: int, unit: Unit) -> dict[str, Figure]:
    """Call each measure once per round, in reverse order every second round; return their figures."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    order = list(measures)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            values[name].append(round(measures[name](), 6))
            log(f"round {number + 1} of {rounds}: {name}: {values[name][-1]:.6g} {unit}")
    return {name: Figure(unit=unit, values=tuple(each)) for name, each in values.items()}
