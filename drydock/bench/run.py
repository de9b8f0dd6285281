"""`invoke bench`: measure parts, show the table, and record it where asked. IO."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.bench import facts, page, tool
from drydock.bench.records import Part, Report, Row
from drydock.errors import InputError, nearest
from drydock.files import dumps
from drydock.record import dump


class Bench(NamedTuple):
    """How a part is measured."""

    rows: Callable[[int], Sequence[Row]]
    rounds: int
    """By default."""


BENCHES: Mapping[str, Bench] = {"tool": Bench(tool.rows, 7)}


def run(name: str, rounds: int) -> dict[str, Part]:
    """Measure one part, or all of them in the order of the page; 0 rounds are each part's own number.

    Raises InputError for a part that there is not.
    """
    if name and name not in BENCHES:
        raise InputError(f"unknown part {name!r}", hint=nearest(name, BENCHES))
    if rounds < 0:
        raise InputError(f"--rounds {rounds}: expected 1 or more")
    return {each: measure(BENCHES[each], rounds) for each in page.TITLES if each in BENCHES and name in ("", each)}


def measure(bench: Bench, rounds: int) -> Part:
    """Measure one part."""
    machine, begin = facts.machine(), time.monotonic()
    count = rounds or bench.rounds
    rows = tuple(bench.rows(count))
    return Part(
        commit=facts.commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=machine,
        rounds=count,
        seconds=round(time.monotonic() - begin, 1),
        rows=rows,
    )


def text(parts: Mapping[str, Part], *, json: bool) -> str:
    """Return what was measured: as JSON, or as a table."""
    if json:
        return dumps(dump(Report(parts=parts)))
    return page.table([row for part in parts.values() for row in part.rows])


def bench(root: Path, name: str, rounds: int, *, record: bool) -> tuple[dict[str, Part], list[Path]]:
    """Measure; return the parts, and the files that recording them changed."""
    parts = run(name, rounds)
    return parts, page.record(root, parts) if record else []
