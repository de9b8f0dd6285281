"""The records of docs/benchmarks.json: figures, rows and the machine they were measured on. Pure data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from drydock.model.record import Record

Unit = Literal["s", "ms", "B", "tok/s", "%", ""]


class Figure(Record):
    """One quantity, measured several times."""

    unit: Unit
    values: tuple[float, ...]
    """In the order of measurement; never empty."""

    @property
    def median(self) -> float:
        """Return the middle value, in the figure's unit."""
        return median(self.values)


class Goal(Record):
    """The goal of a row."""

    compares: Literal["ratio", "ours"]
    """Ours divided by theirs, or ours alone, in its unit."""
    sense: Literal["at most", "at least"]
    limit: float
    because: str = ""
    """Why this limit, as a sentence."""


def ratio_at_most(limit: float, because: str) -> Goal:
    """Return the goal of a row that costs something: ours divided by theirs."""
    return Goal(compares="ratio", sense="at most", limit=limit, because=because)


def ratio_at_least(limit: float, because: str) -> Goal:
    """Return the goal of a row that yields something: ours divided by theirs."""
    return Goal(compares="ratio", sense="at least", limit=limit, because=because)


def at_most(limit: float, because: str) -> Goal:
    """Return the goal of a row whose own figure counts, in its unit."""
    return Goal(compares="ours", sense="at most", limit=limit, because=because)


class Measurement(Record):
    """One line of the table."""

    what: str
    against: str
    goal: Goal
    ours: Figure
    theirs: Figure | None
    """None if the goal is about ours alone."""
    command: str
    """The command that repeats this measurement."""
    note: str = ""
    """What the row leaves out, or how it was measured."""

    @property
    def compared_values(self) -> tuple[float, ...]:
        """Return what the goal is about, of each round: ours, or its ratio to theirs of the same round.

        Figures of different rounds, such as one that is counted once, are compared with each other's.
        """
        if self.goal.compares == "ours" or self.theirs is None:
            return self.ours.values
        ours, theirs = self.ours.values, self.theirs.values
        pairs = zip(ours, theirs, strict=True) if len(ours) == len(theirs) else itertools.product(ours, theirs)
        return tuple(own / other for own, other in pairs)

    @property
    def value(self) -> float:
        """Return the value to compare with the goal."""
        return median(self.compared_values)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the bounds between which the true median is."""
        return find_median_bounds(self.compared_values)

    @property
    def met(self) -> bool | None:
        """Return whether the goal was reached; None if the bounds are on both sides of it."""
        low, high = self.interval
        is_at_most, limit = self.goal.sense == "at most", self.goal.limit
        reached = [bound <= limit if is_at_most else bound >= limit for bound in (low, high)]
        return reached[0] if reached[0] == reached[1] else None


CERTAIN = 0.9
"""Least probability that the true median is between two bounds, where so few values can say it."""


def find_median_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return two of the values between which the true median is. Pure.

    How many of n values are below the true median is a binomial distribution, whatever the values' own is. So the k-th
    least and the k-th greatest have it between them, but for the probability that fewer than k are on one side. k is
    the largest with which that leaves CERTAIN; of less than five values the least and the greatest.
    """
    ordered = sorted(values)
    count, left_out, outside = len(ordered), 0, 2 * 0.5 ** len(ordered)
    for more in range(1, count // 2):
        outside += 2 * math.comb(count, more) * 0.5**count
        if outside > 1 - CERTAIN:
            break
        left_out = more
    return ordered[left_out], ordered[count - 1 - left_out]


class BenchmarkMachine(Record):
    """The machine of a measurement."""

    processor: str
    cpus: int
    """CPUs that the process may use."""
    memory: int
    """Bytes."""
    kernel: str
    system: str
    python: str
    engine: str
    """Versions of the Docker engine and of buildx; empty if there is no engine."""
    load: float
    """Load average of the last minute before the measurement."""


class MeasuredPart(Record):
    """One run of one part."""

    commit: str
    """The measured commit of this repository; ends in + if files had uncommitted changes."""
    date: str
    machine: BenchmarkMachine
    rounds: int
    seconds: float
    rows: tuple[Measurement, ...]


class Report(Record):
    """docs/benchmarks.json."""

    parts: Mapping[str, MeasuredPart]
