"""A comparison as text and as JSON, and its exit code. Pure."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drydock.compare.comparison import Comparison
from drydock.compare.host_plans import ChangedPlan, ChangedSetting
from drydock.compare.judgment import Judgment, Verdict
from drydock.compare.version_changes import ChangedDefault, ChangedNames
from drydock.compare.vllm_version import ServedVersion
from drydock.core.console import as_lines
from drydock.core.errors import BlockedError, ManualError, UncertainError

NAMES_AT_MOST = 12
"""Names of a list in a line of the text; --json has all."""
NAME_AT_MOST = 160
"""Characters of a flag with its value in the text."""
_WIDEST = 140
"""Columns of the table. On a wider terminal, lines would be too long to read."""


def raise_verdict(comparison: Comparison) -> None:
    """Raise the error whose exit code stands for the verdict; none for a safe command."""
    name = comparison.new.title
    match comparison.verdict:
        case Verdict.BLOCKED:
            raise BlockedError(f"{name} refuses this command")
        case Verdict.MANUAL:
            raise ManualError(f"{name} needs changes in this command that a person must decide on")
        case Verdict.UNKNOWN:
            raise UncertainError(f"nothing breaks that is known, but not every part is known for {name}")


def format_comparison(comparison: Comparison, columns: int, *, every: bool) -> str:
    """Format a comparison; with `every`, also what this command does not have."""
    counts = Counter(judgment.verdict for judgment in comparison.judgments)
    parts = ", ".join(f"{counts[verdict]} {verdict.word}" for verdict in sorted(counts, reverse=True))
    lines = [
        f"{comparison.verdict.word}: {comparison.old.title} → {comparison.new.title}: {parts or 'nothing to judge'}",
        *(f"({note})" for note in comparison.notes),
        "",
        *_table_lines(comparison.judgments, min(columns, _WIDEST)),
        *list_default_lines(comparison.defaults),
        *_plan_lines(comparison.plans, comparison.left_out),
    ]
    if every:
        lines += ["", *(line for change in comparison.lists for line in list_name_lines(change))]
    return as_lines(lines)


def _table_lines(judgments: Sequence[Judgment], columns: int) -> list[str]:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("verdict", "part", "why → what to write"):
        table.add_column(name, no_wrap=name == "verdict", overflow="fold")
    for judgment in judgments:
        why = judgment.because + (f"\n→ {judgment.instead}" if judgment.instead else "")
        table.add_row(judgment.verdict.word, Text(shorten_name(judgment.name)), Text(why))
    console = Console(width=columns, color_system=None, file=io.StringIO(), legacy_windows=False)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def shorten_name(name: str) -> str:
    """Return the beginning of a part that is long; --json has all of it."""
    return name if len(name) <= NAME_AT_MOST else f"{name[:NAME_AT_MOST]}…"


def list_default_lines(defaults: Sequence[ChangedDefault]) -> Iterator[str]:
    """Yield the defaults that changed."""
    if defaults:
        yield ""
        yield "defaults that changed, where this command says nothing:"
        yield from (f"  {change.name}: {change.old} → {change.new}" for change in defaults)


def _plan_lines(plans: Sequence[ChangedPlan], left_out: Sequence[str]) -> Iterator[str]:
    """Yield what changes in drydock's plans of a command's model."""
    if not plans:
        return
    yield ""
    without = f", without {', '.join(map(shorten_name, left_out))}" if left_out else ""
    yield f"drydock's plan of this model{without}:"
    yield from list_plan_lines(plans)


def list_plan_lines(plans: Sequence[ChangedPlan]) -> Iterator[str]:
    """Yield what changes in plans; hosts with the same changes stand together."""
    groups: dict[tuple[Any, ...], list[ChangedPlan]] = {}
    for plan in plans:
        compared_fields = (tuple(change[:3] for change in plan.changes), plan.old_problem, plan.new_problem)
        groups.setdefault(compared_fields, []).append(plan)
    for members in groups.values():
        hosts, (_, changes, old_problem, new_problem) = [plan.host for plan in members], members[0]
        yield f"  {', '.join(hosts)}"
        if old_problem and old_problem == new_problem:
            yield f"    no plan of either row: {old_problem}"
            continue
        yield from (f"    {mark} no plan: {text}" for mark, text in (("-", old_problem), ("+", new_problem)) if text)
        yield from (f"    {line}" for change in changes for line in _setting_lines(change))
        if not (changes or old_problem or new_problem):
            yield "    no differences"


def _setting_lines(change: ChangedSetting) -> Iterator[str]:
    if change.old is None:
        yield f"+ {change.name} {change.new}".rstrip()
    elif change.new is None:
        yield f"- {change.name} {change.old}".rstrip()
    else:
        yield f"~ {change.name}: {change.old} → {change.new}"
    if change.because:
        yield f"    {change.because}"


def list_name_lines(change: ChangedNames) -> Iterator[str]:
    """Yield what a list lost and gained."""
    yield f"{change.list}:"
    for mark, names in (("-", change.gone), ("+", change.added)):
        if names:
            more = f" and {len(names) - NAMES_AT_MOST} more" if len(names) > NAMES_AT_MOST and mark == "+" else ""
            listed = names[:NAMES_AT_MOST] if more else names
            yield f"  {mark} {', '.join(listed)}{more}"


def make_comparison_json(comparison: Comparison, *, every: bool) -> dict[str, Any]:
    """Return a comparison as JSON has it."""
    return {
        "from": _make_side_json(comparison.old),
        "to": _make_side_json(comparison.new),
        "verdict": comparison.verdict.word,
        "judgments": [{**item._asdict(), "verdict": item.verdict.word} for item in comparison.judgments],
        "defaults": comparison.defaults,
        "notes": comparison.notes,
        "plans": comparison.plans,
        "left_out": comparison.left_out,
        "lists": comparison.lists if every else [],
    }


def _make_side_json(version: ServedVersion) -> dict[str, str]:
    row = version.variant.id if version.variant else ""
    return {
        "name": version.name,
        "row": row,
        "distribution": version.distribution,
        "version": version.version,
        "assumed": version.assumed,
    }
