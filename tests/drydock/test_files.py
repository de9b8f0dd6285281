"""JSON as it is committed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drydock.files import dumps

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from(['"', "\\", "é\n"])
)
KEYS = st.one_of(st.text(), st.sampled_from(["", "a: b", ": null}"]))
VALUES = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(KEYS, inner)), max_leaves=20)


@given(VALUES)
def test_json_is_what_the_standard_library_writes(value: object) -> None:
    assert dumps(value) == json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(
    "value", [{1: "a", 2: []}, {True: {}}, {None: 1}, {1.5: (1, ("b", {}))}, (), {}, [[], [{}]], {"a": {"b": ()}}]
)
def test_keys_that_are_no_text_and_empty_values_are_written_likewise(value: object) -> None:
    assert dumps(value) == json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        dumps({"a": {1, 2}})
