"""Damaged copies of what a tool printed: cut, with bytes changed, lines repeated, swapped, lost or endless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

rounds = 1
"""Rounds of damaged inputs for each parser: 200 with `./inv test --all` (--fuzz-rounds)."""
ROUND = 50
"""Inputs in a round."""

_WORDS = (
    "",
    "|",
    "+---+",
    "N/A",
    "NA",
    "-",
    "-1",
    "99999999999999999999999",
    "\x00",
    "\ufffd",
    "℃",
    "{",
    "]",
    "0x",
    "\r",
)


def damaged(*samples: str) -> st.SearchStrategy[str]:
    """Return copies of samples with one to four things wrong, and now and then any text at all."""
    cuts = st.tuples(st.sampled_from(samples), st.lists(_HARM, min_size=1, max_size=4)).map(_apply)
    return st.one_of(cuts, cuts, cuts, st.text(max_size=200))


_HARM = st.tuples(
    st.sampled_from(("cut", "drop", "repeat", "swap", "replace", "insert", "number")),
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 20),
    st.sampled_from(_WORDS),
)


def _apply(case: tuple[str, list[tuple[str, int, int, str]]]) -> str:
    text, harms = case
    for kind, first, second, word in harms:
        text = _HARMS[kind](text, first, second, word)
    return text


def _cut(text: str, first: int, *_: Any) -> str:
    return text[: first % (len(text) + 1)]


def _insert(text: str, first: int, _second: int, word: str) -> str:
    place = first % (len(text) + 1)
    return text[:place] + word + text[place:]


def _replace(text: str, first: int, _second: int, word: str) -> str:
    place = first % (len(text) + 1)
    return text[:place] + word + text[place + 1 :]


def _number(text: str, first: int, second: int, _word: str) -> str:
    places = [place for place, character in enumerate(text) if character.isdigit()]
    if not places:
        return text
    place = places[first % len(places)]
    return f"{text[:place]}{second % 10}{text[place + 1 :]}"


def _lines(change: Callable[[list[str], int, int], None]) -> Callable[..., str]:
    def _changed(text: str, first: int, second: int, _word: str) -> str:
        lines = text.splitlines(keepends=True) or [""]
        change(lines, first % len(lines), second % len(lines))
        return "".join(lines)

    return _changed


def _swap(lines: list[str], first: int, second: int) -> None:
    lines[first], lines[second] = lines[second], lines[first]


_HARMS: dict[str, Callable[..., str]] = {
    "cut": _cut,
    "insert": _insert,
    "replace": _replace,
    "number": _number,
    "drop": _lines(lambda lines, first, _: lines.__delitem__(first)),
    "repeat": _lines(lambda lines, first, _: lines.insert(first, lines[first] * 3)),
    "swap": _lines(_swap),
}


def survives_damage(parse: Callable[[str], object], *samples: str) -> None:
    """See that a parser takes whatever a tool may print: it returns, or raises ValueError with a sentence."""

    def _try(text: str) -> None:
        try:
            parse(text)
        except ValueError as error:
            assert str(error), "an error says what was expected"  # noqa: PT017 - most cases raise none

    for sample in samples:
        parse(sample)
    repeat(_try, damaged(*samples))


def repeat(check: Callable[..., None], *cases: st.SearchStrategy[Any]) -> None:
    """Run a check on generated cases, in rounds."""
    options = settings(max_examples=ROUND, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    for number in range(rounds):
        seed(number)(options(given(*cases)(check)))()


fuzz = pytest.mark.fuzz
