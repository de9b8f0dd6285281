"""Every regular expression takes a time that grows with its text, and not with the square of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.patterns import Pattern, list_attacks, list_patterns, measure_search

ROOT = Path(__file__).parents[2]
SHORT, TIMES = 1000, 8
SLOW = 0.01
"""Seconds from which a time is looked at: a linear pattern takes a thousandth of a second for 8,000 characters, and a
busy machine adds a few thousandths."""
OF_OUR_OWN_TEXT = ("drydock/pages/pictures.py", "drydock/development/surface.py", "drydock/lock/named_sources.py")
"""Files whose patterns read what this repository contains."""


def find_slowness(pattern: Pattern) -> str:
    """Return the run of characters for which a pattern's time grows with the square of its length; empty for none."""
    for before, unit, after in list_attacks(pattern.compiled):
        count = max(1, SHORT // len(unit))
        # The middle length comes first: an exponential pattern would not end for the long one.
        texts = [before + unit * (count * times) + after for times in (1, 2, TIMES)]
        if measure_search(pattern, texts[1]) > 1:
            return f"{before!a:.60} {unit!a:.60} {after!a}"
        if measure_search(pattern, texts[2]) < SLOW:
            continue
        short, long = (min(measure_search(pattern, text) for _ in range(3)) for text in (texts[0], texts[2]))
        if long > SLOW and long > short * TIMES * 3:
            return f"{before!a:.60} {unit!a:.60} {after!a}: {short:.4f} s, {long:.4f} s for {TIMES} times as much"
    return ""


def test_no_pattern_is_quadratic() -> None:
    patterns = [pattern for pattern in list_patterns(ROOT) if not pattern.place.startswith(OF_OUR_OWN_TEXT)]
    slow = {f"{item.place} {item.compiled.pattern!a}": text for item in patterns if (text := find_slowness(item))}

    assert len(patterns) > 300
    assert slow == {}


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"^if is_(?:vision|torch)_available\(\):\n((?:[ \t]+.*\n|\n)+)", r"\d+(?:\.\d+)+", r"\s*/\s*", r"^\s*\["),
        *(r"^((?:@.*\n)*)class (\w+)\b", r".*@(?=.*/)", r"x\s*:?\s*y"),
    ],
)
def test_a_quadratic_pattern_is_noticed(pattern: str) -> None:
    assert find_slowness(Pattern("", re.compile(pattern, re.MULTILINE), searches=True))


@pytest.mark.parametrize("pattern", [r"(?<!\d)\d+(?:\.\d+)+", r"^[ \t]*\[", r"[a-z]+", r"a{1,60}b"])
def test_a_linear_pattern_is_not(pattern: str) -> None:
    assert find_slowness(Pattern("", re.compile(pattern, re.MULTILINE), searches=True)) == ""
