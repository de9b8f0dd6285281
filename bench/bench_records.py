"""The records of docs/benchmarks.json: figures, rows and the machine they were measured on. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
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
    def value(self) -> float:
        """Return the value to compare with the goal. A ratio is that of the medians."""
        if self.goal.compares == "ours" or self.theirs is None:
            return self.ours.median
        return self.ours.median / self.theirs.median

    @property
    def spreads_overlap(self) -> bool:
        """Return whether the two figures' values overlap, so that noise can make their difference."""
        if self.theirs is None or self.goal.compares == "ours":
            return False
        ours, theirs = self.ours.values, self.theirs.values
        return min(ours) < max(theirs) and min(theirs) < max(ours)

    @property
    def met(self) -> bool:
        """Return whether the goal was reached."""
        return self.value <= self.goal.limit if self.goal.sense == "at most" else self.value >= self.goal.limit


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
