"""A text stays a text for readers of YAML 1.1 and 1.2."""

from __future__ import annotations

import re

import pytest
import yaml

from drydock.core.dollars import double_dollars_of_texts
from drydock.core.yaml_writer import write_yaml

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
