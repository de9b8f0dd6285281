"""`./inv bench`: measure parts and format the results. IO."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bench import (
    bench_machine,
    bench_page,
    build_rows,
    cleanup_guard,
    detect_rows,
    growth_rows,
    many_rows,
    plain_image,
    serve_rows,
    ship_rows,
    size_rows,
    start_rows,
    tool_rows,
)
from bench.bench_records import MeasuredPart, Measurement, Report
from drydock.core.console import log
from drydock.core.errors import InputError, suggest_nearest
from drydock.core.files import format_json
from drydock.core.paths import ROOT
from drydock.model.record import dump_record


class Bench(NamedTuple):
    """How a part is measured."""

    measure: Callable[[int], Iterable[Measurement]]
    rounds: int
    """Default number of rounds."""
    short: Callable[[], Iterable[Measurement]] | None = None
    """How it is measured in the short form; None if that leaves it out."""


BENCHES: Mapping[str, Bench] = {
    "build": Bench(build_rows.measure_builds, 2, build_rows.measure_cached_builds),
    "start": Bench(start_rows.measure_starts, 2, start_rows.measure_short_starts),
    "serve": Bench(serve_rows.measure_serving, 5),
    "size": Bench(size_rows.measure_sizes, 1),
    "ship": Bench(ship_rows.measure_shipping, 2),
    "many": Bench(many_rows.measure_many, 1),
    "growth": Bench(growth_rows.measure_growth, 3, partial(growth_rows.measure_growth, 1)),
    "tool": Bench(
        lambda rounds: [*tool_rows.measure_tool(rounds), *detect_rows.measure_detection(rounds)],
        7,
        partial(tool_rows.measure_tool, 1),
    ),
}
"""Part → its benchmark, in the order of the page."""
WITHOUT_IMAGE = {"growth", "tool"}


def run_benchmarks(name: str, rounds: int, parts: dict[str, MeasuredPart], *, short: bool = False) -> None:
    """Measure one part, or every part if `name` is empty. 0 rounds: each part's default; `short`: one of some rows.

    Results are added to `parts`, so they are kept if a later part fails. What it started or made goes at the end, even
    if it is killed. Raises InputError for an unknown part.
    """
    if name and name not in BENCHES:
        raise InputError(f"unknown part {name!r}", hint=suggest_nearest(name, BENCHES))
    if rounds < 0:
        raise InputError(f"--rounds {rounds}: expected 1 or more")
    names = [part for part in ([name] if name else BENCHES) if not short or BENCHES[part].short]
    if not names:
        have = ", ".join(part for part, bench in BENCHES.items() if bench.short)
        raise InputError(f"--short: {name} has no short form", hint=f"these have one: {have}")
    log(
        f"bench measures once: {', '.join(names)}"
        if short
        else announce_bench(names, rounds, bench_page.read_report(ROOT).parts)
    )
    with cleanup_guard.guard_run():
        try:
            for part in names:
                parts[part] = measure_part(BENCHES[part], rounds, short=short)
        finally:
            if {*names} - WITHOUT_IMAGE:
                plain_image.remove_plain_images()


def announce_bench(names: Sequence[str], rounds: int, recorded: Mapping[str, MeasuredPart]) -> str:
    """Return what will be measured, and how long that took when it was recorded. Pure."""
    lines = []
    total = 0.0
    for name in names:
        count = rounds or BENCHES[name].rounds
        earlier = recorded.get(name)
        seconds = earlier.seconds * count / earlier.rounds if earlier else 0
        total += seconds
        time_ = f"about {_format_minutes(seconds)}" if earlier else "unknown time"
        lines.append(f"  {name:6} {count} round{'s' if count > 1 else ''}, {time_}")
    if any(name in recorded for name in names):
        lines.append(
            f"about {_format_minutes(total)} in all, by the last recorded run ({bench_page.RECORDED});"
            " builds come on top"
        )
    return "\n".join(["bench measures:", *lines])


def _format_minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"  # noqa: PLR2004


def measure_part(bench: Bench, rounds: int, *, short: bool = False) -> MeasuredPart:
    """Measure one part."""
    machine, begin = bench_machine.read_machine(), time.monotonic()
    count = 1 if short else rounds or bench.rounds
    rows = tuple(bench.short() if short and bench.short else bench.measure(count))
    return MeasuredPart(
        commit=bench_machine.read_marked_commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=machine,
        rounds=count,
        seconds=round(time.monotonic() - begin, 1),
        rows=rows,
    )


def format_parts(parts: Mapping[str, MeasuredPart], *, json: bool, short: bool = False) -> str:
    """Return the results as JSON, or as a table if there are any; of the short form only the ratios."""
    if json:
        return format_json(dump_record(Report(parts=parts)))
    rows = [row for part in parts.values() for row in part.rows]
    if not rows:
        return ""
    return bench_page.format_ratios(rows) if short else bench_page.format_rows_table(rows)
