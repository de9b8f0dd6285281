"""Comparison of two plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from entrypoints.core.errors import OK, USAGE, EntrypointError
from entrypoints.plan.diff import Change, Side, compare_plan_settings, format_changes, parse_plan
from entrypoints.request.arguments import parse_arguments
from entrypoints.verbs.dispatch import main


def plan(**settings: str) -> str:
    reasons = [
        {"setting": name, "value": value, "origin": "decision", "because": f"{name} is {value}", "instead": []}
        for name, value in settings.items()
    ]
    return json.dumps({"model": "/models/m", "reasons": reasons})


def test_only_differences_are_listed_with_both_reasons() -> None:
    changes = compare_plan_settings(parse_plan(plan(a="1", b="2", c="3")), parse_plan(plan(a="1", b="4", d="5")))

    assert changes == (
        Change("b", Side("2", "decision", "b is 2"), Side("4", "decision", "b is 4")),
        Change("c", Side("3", "decision", "c is 3"), None),
        Change("d", None, Side("5", "decision", "d is 5")),
    )
    assert format_changes(changes).splitlines()[:3] == ["b", "  - 2  [decision]  b is 2", "  + 4  [decision]  b is 4"]
    assert format_changes(()) == "no differences\n"


def test_folders_of_the_cache_are_one_line() -> None:
    """They have the image's name, so two rows differ in each of them."""
    sides = (Side(f"/cache/compiled/{row}/home", "default", "writable") for row in ("a", "b"))
    own = Change("XDG_CACHE_HOME", Side("/cache/compiled/x", "environment", ""), None)

    text = format_changes((Change("HOME", *sides), own))

    assert text.splitlines() == [
        "XDG_CACHE_HOME",
        "  - /cache/compiled/x  [environment]",
        "folders of the cache, by image and device: HOME",
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"reasons": [{}]}', '{"reasons": [1]}', '{"reasons": {}}'])
def test_an_invalid_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"plan|value"):
        parse_plan(text)


def test_the_verb_compares_two_files(tmp_path: Path, capsys: Any) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(plan(a="1"))
    second.write_text(plan(a="2"))

    assert main(("plan", "--diff", str(first), str(second)), {}) == OK
    assert capsys.readouterr().out.startswith("a\n  - 1")
    assert main(("plan", "--diff", str(first), str(tmp_path / "none")), {}) == USAGE


def test_diff_requires_two_files() -> None:
    assert parse_arguments(("plan", "--diff", "a", "b")).diff == ("a", "b")
    assert parse_arguments(("plan", "--diff=a", "b")).diff == ("a", "b")
    with pytest.raises(EntrypointError, match="--diff requires a value"):
        parse_arguments(("plan", "--diff", "a"))
    with pytest.raises(EntrypointError, match="--diff cannot be used with"):
        parse_arguments(("check", "--diff", "a", "b"))
