"""docs/benchmarks.json → docs/benchmarks.md and its pictures. Pure, but for reading and writing files."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from bench.bench_records import BenchmarkMachine, Figure, Goal, MeasuredPart, Measurement, Report
from bench.plot import draw_bars
from drydock.core.errors import StaleError
from drydock.core.files import format_compact_json, write_atomically
from drydock.model.record import dump_record
from drydock.pages.markdown import make_table

RECORDED = Path("docs/benchmarks.json")
PAGE = Path("docs/benchmarks.md")
PICTURES = Path("docs/benchmarks")
TITLES = {
    "build": "Build",
    "start": "Start",
    "serve": "Serve",
    "size": "Size",
    "ship": "Ship",
    "many": "Many rows and machines",
    "growth": "Growth",
    "tool": "Entrypoint",
}
"""Part → its heading, in the order of the page."""
TIMES = "\u00d7"
HEAD = ("measurement", "compared with", "drydock", "other", "ratio", "goal", "met")


def read_report(root: Path) -> Report:
    """Read the recorded figures; an empty report if there are none. Raises StaleError."""
    path = root / RECORDED
    if not path.is_file():
        return Report(parts={})
    try:
        return Report.model_validate_json(path.read_bytes(), strict=False)
    except ValidationError as error:
        raise StaleError(f"{RECORDED}: {error}", hint=f"git checkout {RECORDED}, or ./inv bench --record") from error


def record_parts(root: Path, parts: Mapping[str, MeasuredPart]) -> list[Path]:
    """Add parts to those recorded before; return the files that changed."""
    report = Report(parts={**read_report(root).parts, **parts})
    changed = [root / RECORDED] if write_atomically(root / RECORDED, format_report_json(report)) else []
    return [*changed, *write_page(root)]


def format_report_json(report: Report) -> str:
    """Return a report as JSON, with a line for each measurement."""
    parts = []
    for name, part in sorted(report.parts.items()):
        fields = dump_record(part)
        rows = ",\n".join(map(format_compact_json, fields.pop("rows")))
        parts.append(f'"{name}":{{{format_compact_json(fields)[1:-1]},"rows":[\n{rows}]}}')
    return f'{{"parts":{{\n{",".join(parts)}}}}}\n'


def write_page(root: Path) -> list[Path]:
    """Write page and pictures; return those that changed."""
    return [
        root / path for path, text in make_page_files(read_report(root)).items() if write_atomically(root / path, text)
    ]


def find_stale_files(root: Path) -> list[Path]:
    """Return the files that differ from what the recorded figures give."""
    expected = make_page_files(read_report(root))
    return [path for path, text in expected.items() if not _has_text(root / path, text)]


def _has_text(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


def make_page_files(report: Report) -> dict[Path, str]:
    """Return the page and its pictures by their path below the repository's root; nothing for an empty report."""
    if not report.parts:
        return {}
    contents = {PAGE: _format_page(report)}
    for name, part in _in_order(report):
        contents[PICTURES / f"{name}.svg"] = draw_bars(TITLES[name], part.rows)
    return contents


def _in_order(report: Report) -> Iterator[tuple[str, MeasuredPart]]:
    yield from ((name, report.parts[name]) for name in TITLES if name in report.parts)


def format_rows_table(rows: Sequence[Measurement]) -> str:
    """Return rows as a Markdown table."""
    return make_table(HEAD, map(format_cells, rows))


def format_ratios(rows: Sequence[Measurement]) -> str:
    """Return the ratios of rows as a Markdown table: one round on any machine tells no more."""
    lines = [(row.what, row.against, _format_ratio(row)) for row in rows if row.theirs]
    return make_table(("measurement", "compared with", "ratio"), lines)


def format_cells(row: Measurement) -> tuple[str, ...]:
    """Return the table cells of a row."""
    theirs = row.theirs and format_figure(row.theirs)
    return (
        row.what,
        row.against,
        format_figure(row.ours),
        theirs or "",
        _format_ratio(row),
        format_goal(row.goal, row.ours),
        _format_met(row),
    )


def _format_ratio(row: Measurement) -> str:
    if row.theirs is None:
        return ""
    ratio = row.model_copy(update={"goal": row.goal.model_copy(update={"compares": "ratio"})})
    low, high = ratio.interval
    bounds = f" ({low:.3g} to {high:.3g})" if low != high else ""
    return f"{ratio.value:.3g}{bounds} {TIMES}"


def _format_met(row: Measurement) -> str:
    return {True: "yes", False: "**no**", None: "not known"}[row.met]


def format_figure(figure: Figure) -> str:
    """Return a figure's median, with minimum and maximum if it was measured several times."""
    low, high = min(figure.values), max(figure.values)
    spread = f" ({_format_number(low, figure.unit)} to {_format_number(high, figure.unit)})" if low != high else ""
    return f"{_format_number(figure.median, figure.unit)}{spread} {_name_unit(figure)}".strip()


def _format_number(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 1e6:,.3f}" if value < 1e7 else f"{value / 1e6:,.0f}"  # noqa: PLR2004 - ten megabytes
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - four digits need no fraction


def _name_unit(figure: Figure) -> str:
    return "MB" if figure.unit == "B" else figure.unit


def format_goal(goal: Goal, ours: Figure) -> str:
    """Return a goal as its sign and number."""
    sign = "≤" if goal.sense == "at most" else "≥"
    if goal.compares == "ratio":
        return f"{sign} {goal.limit:g} {TIMES}"
    return f"{sign} {_format_number(goal.limit, ours.unit)} {_name_unit(ours)}"


# --- the page -------------------------------------------------------------------------------------------------------

INTRODUCTION = """# Benchmarks

<!-- generated by `invoke bench --record` from benchmarks.json -->

`./inv bench` measures drydock and a plain Dockerfile alternately, in one run, and prints these tables. A figure is the
median, with minimum and maximum in parentheses. A ratio divides the two figures of the same round. The table has its
median and the bounds between which the true median is with a probability of 90 %; of fewer than five rounds, the least
and the greatest ratio. A goal is met, or not met, only if both bounds say so. Otherwise that is not known, and more
rounds can tell.

The plain image is built from `bench/plain/`. It runs vLLM with its defaults (`plain default`) or with
`--enforce-eager` (`plain eager`), both with half of the machine's memory: vLLM's default, 92 %, must all be free at the
start, and is not where an engine runs.

`./inv bench tool` measures one part, `--json` prints the results as JSON, and `--record` writes this page. `--short`
measures some rows once and prints their ratios; CI does so at night.

"""

COUNTED = {
    "growth": """\
A row is compared with the same command and less work; the goal is the ratio of the work. Rows of a matrix inherit
drydock's, with their locks; devices and nodes are copies of those of a recorded host with eight H100.
""",
    "size": """\
Shared blobs: layers with the same wheels and the same Python version are one blob. The size of a layer is that of its
wheels. Debian bases are included; bases that are images are not, because no lock has their size.
""",
}
"""Part → how its figures were counted."""


def _format_page(report: Report) -> str:
    machines = dict.fromkeys(_format_machine(part.machine) for part in report.parts.values())
    names = {text: f"Machine {number}" for number, text in enumerate(machines, 1)}
    listed = "".join(f"{name}: {text}.\n\n" for text, name in names.items())
    sections = (_format_section(name, part, names[_format_machine(part.machine)]) for name, part in _in_order(report))
    return INTRODUCTION + listed + "\n".join(sections)


def _format_section(name: str, part: MeasuredPart, machine: str) -> str:
    rounds = "1 round" if part.rounds == 1 else f"{part.rounds} rounds"
    when = f"{part.date} at {part.commit}, {rounds} in {part.seconds / 60:.0f} min, load average {part.machine.load:g}"
    commands = ", ".join(dict.fromkeys(f"`{row.command}`" for row in part.rows))
    counted = f"{COUNTED[name]}\n" if name in COUNTED else ""
    figures = f"{format_rows_table(part.rows)}\n![{name}](benchmarks/{name}.svg)\n"
    measured = f"{machine}, {when}. To repeat: {commands}.\n"
    return f"## {TITLES[name]}\n\n{figures}\n{counted}{_format_notes(part.rows)}{measured}"


def _format_machine(machine: BenchmarkMachine) -> str:
    engine = f", {machine.engine}" if machine.engine else ""
    memory = f"{machine.memory / 2**30:.0f} GiB"
    return (
        f"{machine.processor}, {machine.cpus} CPUs, {memory}, {machine.system}, Linux {machine.kernel}, "
        f"Python {machine.python}{engine}"
    )


def _format_notes(rows: Sequence[Measurement]) -> str:
    """Return each note and each goal with its reason once, with the rows that they are about."""
    about: dict[str, list[str]] = {}
    times = Counter(row.what for row in rows)
    for row in rows:
        name = row.what if times[row.what] == 1 else f"{row.what} (compared with {row.against})"
        if row.note:
            about.setdefault(row.note, []).append(name)
        if row.goal.because:
            goal = f"The goal is {format_goal(row.goal, row.ours)}. {row.goal.because}"
            about.setdefault(goal, []).append(name)
    lines = (f"- {'; '.join(names)}: {note}" for note, names in about.items())
    notes = "".join(textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) + "\n" for line in lines)
    return f"{notes}\n" if notes else ""
