"""A text stays a text for readers of YAML 1.1 and 1.2, and a file that is changed keeps its comments."""

from __future__ import annotations

import re

import pytest
import yaml

from drydock.core.dollars import double_dollars_of_texts
from drydock.core.errors import InputError
from drydock.core.yaml_writer import set_value, write_yaml

AMBIGUOUS = [
    *("1e3", "-1e-3", ".5", "1.", "0o17", "0x1F", "y", "N"),
    *("on", "no", "null", "~", "012", "1_0", "1:30", "2024-01-01"),
]


@pytest.mark.parametrize("text", [*AMBIGUOUS, ""])
def test_what_a_reader_may_take_for_something_else_is_quoted(text: str) -> None:
    yaml_text = write_yaml([text])
    assert re.fullmatch(rf"- (['\"]){re.escape(text)}\1\n", yaml_text)
    assert yaml.safe_load(yaml_text) == [text]


@pytest.mark.parametrize("text", ["word", "a.b/c:1", "--flag", "12.10-x", "1e3-cpu", "2024-01-01-cpu", "Übung"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert write_yaml([text]) == f"- {text}\n"


def test_texts_are_doubled_at_every_depth_and_keys_and_numbers_stay() -> None:
    document = {"$key": ["$A", ("${B}", 1)], "env": {"C": "$(D)", "E": None, "F": True}}

    assert double_dollars_of_texts(document) == {
        "$key": ["$$A", ["$${B}", 1]],
        "env": {"C": "$$(D)", "E": None, "F": True},
    }


# --- text of files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("a: [p] # why\n", ["p", "q[z]>=1,<2"], "a: [p, 'q[z]>=1,<2'] # why\n"),
        ("a: [p, q] # why\nb: 1\n", ["q"], "a: [q] # why\nb: 1\n"),
        ("a: [p] # why\nb: 1\n", [], "b: 1\n"),
        ("b: 1\n# end\n", ["p"], "b: 1\na: [p]\n# end\n"),
        ("b: 1", ["p"], "b: 1\na: [p]\n"),
        ("a:\n  - p # why\n  # of q\n  - q\nb: 1\n", ["p", "r"], "a:\n  - p # why\n  # of q\n  - r\nb: 1\n"),
        ("a:\n- p\n", [], ""),
        ("a:\n- p # why", ["p", "q"], "a:\n- p # why\n- q\n"),
        ("{b: 1}\n", ["p"], "{b: 1, a: [p]}\n"),
        ("{}\n", ["p"], "{a: [p]}\n"),
    ],
)
def test_a_list_changes_and_comments_stay(text: str, value: list[str], expected: str) -> None:
    assert set_value(text, "file", ("a",), value) == expected


def test_a_text_that_a_program_cannot_change_is_refused() -> None:
    with pytest.raises(InputError, match="file: a cannot be changed by a program") as caught:
        set_value("a: &one [x]\nb: *one\n", "file", ("a",), ["y", "x"])
    assert caught.value.hint == 'write it by hand: a: ["y", x]'
