"""Measuring in turns: ours, theirs, ours, theirs, so that what else the machine does meets both. IO."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping

from bench.records import Figure, Unit
from drydock.core.console import log

Measure = Callable[[], float]


def timed(work: Callable[[], object]) -> float:
    """Do work; return the seconds it took."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def processor(work: Callable[[], object]) -> float:
    """Do work in other processes; return the seconds of processor that they took, theirs and the kernel's for them.

    For work that waits for nothing this is what a quiet machine's clock would say, on a busy one too.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def in_turns(measures: Mapping[str, Measure], rounds: int, unit: Unit) -> dict[str, Figure]:
    """Call each measure once a round, every second round in the other order; return their figures."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        for name in list(measures)[:: 1 if number % 2 == 0 else -1]:
            values[name].append(round(measures[name](), 6))
            log(f"round {number + 1} of {rounds}: {name}: {values[name][-1]:.6g} {unit}")
    return {name: Figure(unit=unit, values=tuple(each)) for name, each in values.items()}
