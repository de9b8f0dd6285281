"""`./inv bench`: measure parts and format the results. IO."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bench import building, detect, facts, growth, guard, many, page, plain_image, serve, ship, size, start, tool
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
    short: Callable[[], Iterable[Measurement]] | None = None
    """How it is measured in the short form; None if that leaves it out."""


BENCHES: Mapping[str, Bench] = {
    "build": Bench(building.rows, 2, building.short),
    "start": Bench(start.rows, 2, start.short),
    "serve": Bench(serve.rows, 2),
    "size": Bench(size.rows, 1),
    "ship": Bench(ship.rows, 2),
    "many": Bench(many.rows, 1),
    "growth": Bench(growth.rows, 3, partial(growth.rows, 1)),
    "tool": Bench(lambda rounds: [*tool.rows(rounds), *detect.rows(rounds)], 7, partial(tool.rows, 1)),
}
"""Part → its benchmark, in the order of the page."""
WITHOUT_IMAGE = {"growth", "tool"}


def run(name: str, rounds: int, parts: dict[str, MeasuredPart], *, short: bool = False) -> None:
    """Measure one part, or every part if `name` is empty. 0 rounds: each part's default; `short`: one of some rows.

    Results are added to `parts`, so they are kept if a later part fails. What it started or made goes at the end, even
    if it is killed. Raises InputError for an unknown part.
    """
    if name and name not in BENCHES:
        raise InputError(f"unknown part {name!r}", hint=nearest(name, BENCHES))
    if rounds < 0:
        raise InputError(f"--rounds {rounds}: expected 1 or more")
    names = [each for each in ([name] if name else BENCHES) if not short or BENCHES[each].short]
    if not names:
        have = ", ".join(each for each, bench in BENCHES.items() if bench.short)
        raise InputError(f"--short: {name} has no short form", hint=f"these have one: {have}")
    log(f"bench measures once: {', '.join(names)}" if short else announcement(names, rounds, page.read(ROOT).parts))
    with guard.guarded():
        try:
            for each in names:
                parts[each] = measure(BENCHES[each], rounds, short=short)
        finally:
            if {*names} - WITHOUT_IMAGE:
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


def measure(bench: Bench, rounds: int, *, short: bool = False) -> MeasuredPart:
    """Measure one part."""
    machine, begin = facts.machine(), time.monotonic()
    count = 1 if short else rounds or bench.rounds
    rows = tuple(bench.short() if short and bench.short else bench.measure(count))
    return MeasuredPart(
        commit=facts.commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=machine,
        rounds=count,
        seconds=round(time.monotonic() - begin, 1),
        rows=rows,
    )


def text(parts: Mapping[str, MeasuredPart], *, json: bool, short: bool = False) -> str:
    """Return the results as JSON, or as a table if there are any; of the short form only the ratios."""
    if json:
        return dumps(dump(Report(parts=parts)))
    rows = [row for part in parts.values() for row in part.rows]
    if not rows:
        return ""
    return page.ratios(rows) if short else page.table(rows)
