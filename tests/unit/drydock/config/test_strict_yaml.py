"""Text in, plain data or an error with its place out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drydock.config.strict_yaml import MAX_BYTES, Document, parse_yaml, read_yaml
from drydock.core.errors import InputError
from drydock.core.paths import ROOT


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(InputError) as raised:
        parse_yaml(text, "file.yaml")
    return raised.value.problems


def test_plain_data_and_where_it_stands() -> None:
    document = parse_yaml('a:\n  b: [1, true, 2.5, null, text, "3.10"]\n', "file.yaml")
    assert document.data == {"a": {"b": [1, True, 2.5, None, "text", "3.10"]}}
    assert document.places["a", "b", 2] == (2, 16, "2.5")
    assert document.places["a", "b"][:2] == (2, 3)


def test_a_problem_names_file_key_path_and_line() -> None:
    document = parse_yaml("a:\n  b:\n    - {c: 1}\n", "file.yaml")
    assert document.problem(("a", "b", 0, "c"), "is wrong") == "file.yaml: a.b[0].c: is wrong (line 3, column 11)"


def test_a_problem_with_an_absent_key_points_at_its_parent() -> None:
    document = parse_yaml("a:\n  b: 1\n", "file.yaml")
    assert document.problem(("a", "z"), "is missing").endswith("(line 1, column 1)")


def test_a_duplicate_key_names_both_lines() -> None:
    assert problems_of("a: 1\nb: 2\na: 3\n") == ("file.yaml: duplicate key 'a', first on line 1 (line 3, column 1)",)


@pytest.mark.parametrize("key", ["no", "on", "1.0", "12", "null", "2026-11-21", "<<"])
def test_a_key_that_yaml_does_not_read_as_text_is_refused(key: str) -> None:
    assert f"key '{key}' is not text to YAML" in problems_of(f"{key}: {{}}\n")[0]


@pytest.mark.parametrize(
    "scalar",
    [
        "no",
        "Yes",
        "on",
        "True",
        "012",
        "0o14",
        "0x1f",
        "1:30",
        "1_000",
        "+1",
        ".5",
        "1e3",
        ".inf",
        "2026-11-21",
        "=",
        "NULL",
    ],
)
def test_a_scalar_that_does_not_mean_what_it_looks_like_is_refused_unless_quoted(scalar: str) -> None:
    quoted = parse_yaml(f'"{scalar}"', "file.yaml").data
    assert quoted == scalar
    plain_is_text = scalar in {"0o14", "1e3"}  # YAML 1.1 reads these as text, as they stand
    if plain_is_text:
        assert parse_yaml(scalar, "file.yaml").data == scalar
    else:
        assert f"found {scalar}, which YAML reads as" in problems_of(scalar)[0]


def test_all_problems_are_shown_at_once() -> None:
    assert len(problems_of("a: no\nb: 012\na: 1\n1: x\n")) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x 1\nb: *x\n", "file.yaml:1:4: anchors and aliases are not allowed"),
        ("a: !!python/object:os.system x", "file.yaml:1:4: tags are not allowed"),
        ("a: b: c", "file.yaml:1:5: mapping values are not allowed here"),
        ("a:\n\t- b\n", "file.yaml:2:1: found character '\\t'"),
        ("a: 1\n---\nb: 2\n", "file.yaml:2:1: but found another document"),
        ('"\\U99999999"', "file.yaml: "),
        ('"\\ud800"', "half of a surrogate pair"),
        ("a: \x07", "is not allowed in YAML"),
        ("[" * 10_000, "nested deeper than"),
        ("a: [" + "x, " * MAX_BYTES, "larger than"),
    ],
)
def test_syntax_errors_and_what_this_project_refuses_have_a_place(text: str, expected: str) -> None:
    assert expected in problems_of(text)[0]


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin1.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(InputError, match=r"latin1\.yaml: byte 3 is not UTF-8"):
        read_yaml(tmp_path / "latin1.yaml", "latin1.yaml")
    with pytest.raises(InputError, match=r"absent\.yaml: cannot be read: No such file"):
        read_yaml(tmp_path / "absent.yaml", "absent.yaml")


YAML_LIKE = st.text(alphabet=st.sampled_from(list("ab:-,[]{}#&*!|>'\"%@`\\uU0189.~?=< \n\t\r\ufeff\x85é")), max_size=60)


@given(st.one_of(YAML_LIKE, st.text(max_size=60)))
def test_any_text_is_data_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert () in parse_yaml(text, "file.yaml").places


ORDINARY = st.lists(
    st.sampled_from(
        [*"ab:-,[]{}#|>'\"%@`\\uU01.~?=< \né&*!", ": ", "- ", "\n  ", "? ", "---", "...", "|\n", "::", "?}"]
    ),
    max_size=20,
).map(lambda words: "".join(words) + "\n")


def read_as(text: str) -> Document | str:
    try:
        return parse_yaml(text, "file.yaml")
    except InputError as error:
        return str(error)


def slowly(text: str, read: Callable[[str], object]) -> object:
    """Read text without libyaml."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("yaml.__with_libyaml__", False)
        return read(text)


@pytest.mark.parametrize(
    "path",
    [ROOT / "matrix.yaml", *sorted(ROOT.glob("templates/*/*.yaml"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_both_parsers_read_this_repository_alike(path: Path) -> None:
    assert read_as(path.read_text()) == slowly(path.read_text(), read_as)


@given(st.one_of(ORDINARY, YAML_LIKE))
def test_both_parsers_read_any_text_alike(text: str) -> None:
    assert read_as(text) == slowly(text, read_as)


def test_what_libyaml_would_take_is_refused_as_before() -> None:
    with pytest.raises(InputError, match=r"file\.yaml:1:3: expected ',' or '}', but got '\?'"):
        parse_yaml("{=?<.}\n", "file.yaml")
