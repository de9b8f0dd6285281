"""The records of docs/benchmarks.json: figures, rows and the machine they were measured on. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Literal

from drydock.model.record import Record

Unit = Literal["s", "ms", "B", "tok/s", "%", ""]


class Figure(Record):
    """One thing measured several times."""

    unit: Unit
    values: tuple[float, ...]
    """As measured, in order; never empty."""

    @property
    def median(self) -> float:
        """Return the middle value, in the figure's unit."""
        return median(self.values)


class Goal(Record):
    """What a row is to reach."""

    compares: Literal["ratio", "ours"]
    """Ours divided by theirs, or ours by itself, in its unit."""
    sense: Literal["at most", "at least"]
    limit: float


class Measurement(Record):
    """One line of the table."""

    what: str
    against: str
    goal: Goal
    ours: Figure
    theirs: Figure | None
    """None where the goal is ours alone."""
    command: str
    """What shows just this again."""
    note: str = ""
    """The floor that was measured, and why, where the goal is out of reach; else what the row leaves out."""

    @property
    def value(self) -> float:
        """Return what the goal is compared with. A ratio is of the medians."""
        if self.goal.compares == "ours" or self.theirs is None:
            return self.ours.median
        return self.ours.median / self.theirs.median

    @property
    def met(self) -> bool:
        """Tell whether the goal was reached."""
        return self.value <= self.goal.limit if self.goal.sense == "at most" else self.value >= self.goal.limit


class BenchmarkMachine(Record):
    """What it was measured on."""

    processor: str
    cpus: int
    """That the process may use."""
    memory: int
    """In bytes."""
    kernel: str
    system: str
    python: str
    engine: str
    """Version of the Docker engine and of buildx; empty where the part needs none."""
    load: float
    """Others' work when it began: the load average of the last minute."""


class Phase(Record):
    """A stretch of time in one process."""

    process: str
    phase: str
    begin: float
    """Seconds since the container's start."""
    seconds: float


class MeasuredPart(Record):
    """One run of one part."""

    commit: str
    """Of this repository, when it was measured; ends in + where files had changed."""
    date: str
    machine: BenchmarkMachine
    rounds: int
    seconds: float
    rows: tuple[Measurement, ...]
    profile: Mapping[str, tuple[Phase, ...]] = {}
    """Where the seconds of a start went, by who started."""


class Report(Record):
    """docs/benchmarks.json."""

    parts: Mapping[str, MeasuredPart]
