"""Two outputs of `plan --json` → the settings that differ, with both reasons. Pure, except for reading files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.cache.entries import COMPILED
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.folders import read_bounded
from entrypoints.core.parse import parse_untrusted_json

_AT_MOST = 16 << 20
"""Bytes of a plan; a usual one has 20 kB."""


class Side(NamedTuple):
    """One setting in one plan."""

    value: str
    origin: str
    because: str


class Change(NamedTuple):
    """A setting that differs between two plans; None where a plan lacks it."""

    setting: str
    first: Side | None
    second: Side | None


def read_plan(path: str) -> dict[str, Side]:
    """Read the settings from a file with the output of `plan --json`. Raises USAGE."""
    try:
        return parse_plan(read_bounded(path, _AT_MOST).decode())
    except (OSError, ValueError) as error:
        raise EntrypointError(USAGE, f"--diff {path}: {error}", "expected the output of `plan --json`") from error


def parse_plan(text: str) -> dict[str, Side]:
    """Parse a plan's reasons, and its model. Raises ValueError."""
    plan = parse_untrusted_json(text)
    reasons = plan.get("reasons") if isinstance(plan, dict) else None
    if not isinstance(reasons, list):
        raise ValueError("not a plan: no list `reasons`")  # noqa: TRY004 - one error for whatever is wrong in a file
    sides = {"model": Side(str(plan.get("model", "")), "command line", "")}
    return sides | dict(_parse_reason(reason) for reason in reasons)


def compare_plan_settings(first: Mapping[str, Side], second: Mapping[str, Side]) -> tuple[Change, ...]:
    """Return the settings whose values differ, sorted."""
    names = sorted({*first, *second})
    changes = (Change(name, first.get(name), second.get(name)) for name in names)
    return tuple(change for change in changes if _get_side_value(change.first) != _get_side_value(change.second))


def format_changes(changes: tuple[Change, ...]) -> str:
    """Format changes as text; folders of the cache, which have the image's name, are one line at the end."""
    folders = [change.setting for change in changes if _is_cache_folder(change)]
    lines = [line for change in changes if not _is_cache_folder(change) for line in _format_setting_change(change)]
    lines += [f"folders of the cache, by image and device: {', '.join(folders)}\n"] if folders else []
    return "".join(lines) or "no differences\n"


def _is_cache_folder(change: Change) -> bool:
    sides = [side for side in (change.first, change.second) if side]
    return all(side.origin == "default" and f"/{COMPILED}/" in side.value for side in sides)


def _parse_reason(reason: Any) -> tuple[str, Side]:
    try:
        return str(reason["setting"]), Side(str(reason["value"]), str(reason["origin"]), str(reason["because"]))
    except (KeyError, TypeError) as error:
        raise ValueError("not a plan: a reason lacks setting, value, origin or because") from error


def _get_side_value(side: Side | None) -> str | None:
    return side.value if side else None


def _format_setting_change(change: Change) -> Iterator[str]:
    yield f"{change.setting}\n"
    for mark, side in (("-", change.first), ("+", change.second)):
        if side:
            because = f"  {side.because}" if side.because else ""
            yield f"  {mark} {side.value}  [{side.origin}]{because}\n"
