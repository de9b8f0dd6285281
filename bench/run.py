"""`./inv bench`: measure parts and format the results. IO."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from bench import building, facts, guard, page, plain_image, serve, ship, size, start, tool
from bench.records import MeasuredPart, Measurement, Report
from drydock.core.console import log
from drydock.core.errors import InputError, nearest
from drydock.core.files import dumps
from drydock.core.paths import ROOT
from drydock.model.record import dump


class Bench(NamedTuple):
    """How a part is measured."""

    measure: Callable[[int], Iterable[Measurement]]
    rounds: int
    """Default number of rounds."""


BENCHES: Mapping[str, Bench] = {
    "build": Bench(building.rows, 2),
    "start": Bench(start.rows, 3),
    "serve": Bench(serve.rows, 2),
    "size": Bench(size.rows, 1),
    "ship": Bench(ship.rows, 2),
    "tool": Bench(tool.rows, 7),
}
"""Part → its benchmark, in the order of the page."""


def run(name: str, rounds: int, parts: dict[str, MeasuredPart]) -> None:
    """Measure one part, or every part if `name` is empty. 0 rounds: each part's default.

    Results are added to `parts`, so they are kept if a later part fails. What it started or made goes at the end, even
    if it is killed. Raises InputError for an unknown part.
    """
    if name and name not in BENCHES:
        raise InputError(f"unknown part {name!r}", hint=nearest(name, BENCHES))
    if rounds < 0:
        raise InputError(f"--rounds {rounds}: expected 1 or more")
    names = (name,) if name else tuple(BENCHES)
    log(announcement(names, rounds, page.read(ROOT).parts))
    with guard.guarded():
        try:
            for each in names:
                parts[each] = measure(BENCHES[each], rounds)
        finally:
            if name != "tool":
                plain_image.forget()


def announcement(names: Sequence[str], rounds: int, recorded: Mapping[str, MeasuredPart]) -> str:
    """Return what will be measured, and how long that took when it was recorded. Pure."""
    lines = []
    total = 0.0
    for name in names:
        count = rounds or BENCHES[name].rounds
        known = recorded.get(name)
        seconds = known.seconds * count / known.rounds if known else 0
        total += seconds
        time_ = f"about {_minutes(seconds)}" if known else "unknown time"
        lines.append(f"  {name:6} {count} round{'s' if count > 1 else ''}, {time_}")
    if any(name in recorded for name in names):
        lines.append(f"about {_minutes(total)} in all, by the last recorded run ({page.RECORDED}); builds come on top")
    return "\n".join(["bench measures:", *lines])


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"  # noqa: PLR2004


def measure(bench: Bench, rounds: int) -> MeasuredPart:
    """Measure one part."""
    machine, begin = facts.machine(), time.monotonic()
    count = rounds or bench.rounds
    rows = tuple(bench.measure(count))
    return MeasuredPart(
        commit=facts.commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=machine,
        rounds=count,
        seconds=round(time.monotonic() - begin, 1),
        rows=rows,
    )


def text(parts: Mapping[str, MeasuredPart], *, json: bool) -> str:
    """Return the results as JSON or as a table."""
    if json:
        return dumps(dump(Report(parts=parts)))
    return page.table([row for part in parts.values() for row in part.rows])
