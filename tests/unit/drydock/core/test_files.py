"""The JSON of committed files."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drydock.core.files import format_json, parse_any_json

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.sampled_from(['"', "\\", "é\n"]),
)
KEYS = st.one_of(st.text(), st.sampled_from(["", "a: b", ": null}"]))
VALUES = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(KEYS, inner)), max_leaves=20)


@given(VALUES)
def test_json_round_trips(value: object) -> None:
    assert json.loads(format_json(value)) == value


@given(st.dictionaries(KEYS, st.integers(0, 9)))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert format_json(value) == format_json(dict(reversed(value.items())))


def test_it_is_sorted_indented_and_ends_with_a_newline() -> None:
    assert format_json({"b": (1, []), "a": {}}) == '{\n  "a": {},\n  "b": [\n    1,\n    []\n  ]\n}\n'


@pytest.mark.parametrize("value", [{"a": {1, 2}}, {1: "a"}, "\ud800"])
def test_values_that_json_cannot_express_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        format_json(value)


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\udfff": 1}', '["\\ud800\\u0041"]'])
@pytest.mark.parametrize("kind", [str.encode, str])
def test_half_of_a_surrogate_pair_is_refused(text: str, kind: Callable[[str], str | bytes]) -> None:
    with pytest.raises(ValueError, match="is half of a character"):
        parse_any_json(kind(text))


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse_any_json('["\\ud83d\\ude00 \\u00e4"]') == ["\U0001f600 ä"]
