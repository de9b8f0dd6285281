"""The JSON of committed files, and how they are written."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drydock.core.files import format_json, parse_any_json, whole_file, write_atomically, write_together
from tests.support.other_users import as_user, only_root, reachable_folder

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


def test_only_temporary_files_of_killed_runs_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "env"
    users = {".env.template", ".env.examples"}
    for name in (*users, ".env.drydock-killed", ".env.drydock-alive"):
        (tmp_path / name).write_text("x")
    with (tmp_path / ".env.drydock-alive").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert write_atomically(path, "y")
    assert {file.name for file in tmp_path.iterdir()} == {*users, ".env.drydock-alive", "env"}


@only_root
def test_a_folder_of_another_user_is_an_error_that_names_the_file() -> None:
    with reachable_folder() as folder:
        problem = as_user(1000, lambda: write_atomically(folder / "lock.json", "x"))
        assert f"{folder}/lock.json: Permission denied" in problem


def test_two_runs_that_write_one_file_at_once_both_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with whole_file(path) as first:
        first.write(b"first")
        write_atomically(path, "second")
    assert path.read_bytes() == b"first"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_files_that_fit_together_are_renamed_when_all_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, same = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    same.write_text("c")
    written: list[list[str]] = []

    def rename(path: Path, final: Path) -> None:
        written.append(sorted(file.read_text() for file in tmp_path.glob(".*")))
        os.rename(path, final)  # noqa: PTH104 - Path.replace is what is replaced here

    monkeypatch.setattr(Path, "replace", rename)
    assert write_together({first: "1", second: "2", same: "c"}) == [first, second]
    assert written == [["1", "2"], ["2"]]
    assert (first.read_text(), second.read_text()) == ("1", "2")
