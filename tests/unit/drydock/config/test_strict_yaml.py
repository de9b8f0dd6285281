"""Text in, plain data or an error with its place out."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from drydock.config.strict_yaml import MAX_BYTES, SYNTAX_HINT, parse_yaml, read_yaml
from drydock.core.errors import InputError
from drydock.core.paths import ROOT


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(InputError) as raised:
        parse_yaml(text, "file.yaml")
    return raised.value.problems


def test_plain_data_and_where_it_stands() -> None:
    document = parse_yaml('a:\n  b: [1, true, 2.5, null, text, "3.10"]\n', "file.yaml")
    assert document.data == {"a": {"b": [1, True, 2.5, None, "text", "3.10"]}}
    assert document.places["a", "b", 2][:3] == (2, 16, "2.5")
    assert document.places["a", "b"][:2] == (2, 3)


def test_a_problem_names_file_key_path_and_line() -> None:
    document = parse_yaml("a:\n  b:\n    - {c: 1}\n", "file.yaml")
    assert document.problem(("a", "b", 0, "c"), "is wrong") == "file.yaml: a.b[0].c: is wrong (line 3, column 11)"


def test_a_problem_with_an_absent_key_points_at_its_parent() -> None:
    document = parse_yaml("a:\n  b: 1\n", "file.yaml")
    assert document.problem(("a", "z"), "is missing").endswith("(line 1, column 1)")


def test_a_duplicate_key_names_both_lines() -> None:
    assert problems_of("a: 1\nb: 2\na: 3\n") == ("file.yaml: duplicate key 'a', first on line 1 (line 3, column 1)",)


@pytest.mark.parametrize("key", ["no", "on", "1.0", "12", "null", "2026-11-21"])
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
        ("a: b: c", "file.yaml:1:5: mapping values are not allowed in this context"),
        ("a:\n\t- b\n", "file.yaml:2:1: found character that cannot start any token"),
        ("a: 1\n---\nb: 2\n", "file.yaml:2:1: another document starts"),
        ('"\\U99999999"', "file.yaml:1:4: found invalid Unicode character escape code"),
        ('"\\ud800"', "file.yaml:1:4: found invalid Unicode character escape code"),
        ("\ud800", "surrogates not allowed"),
        ("a: \x07", "file.yaml: control characters are not allowed (line 1)"),
        ("[" * 10_000, "nested deeper than"),
        ("a: [" + "x, " * MAX_BYTES, "larger than"),
        ("a: 1\n<<: {b: 2}\n", "keys of another table cannot be merged by <<; write them out (line 2, column 1)"),
        ("? [a, b]\n: 1\n", "file.yaml: a key must be text, found a list or mapping (line 1, column 3)"),
        ("b: *x\n", "file.yaml:1:4: anchors and aliases are not allowed"),
        ("&x a: 1\n", "file.yaml:1:1: anchors and aliases are not allowed"),
        ("!!str 1: x\n", "file.yaml:1:1: tags are not allowed"),
        ('"": 1\n"": 2\n', "file.yaml: duplicate key '', first on line 1 (line 2, column 1)"),
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


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a:\n\t- b\n", "indent with spaces, not tabs"),
        ('a: "b\n', SYNTAX_HINT),
        ("a: 'it's'\n", SYNTAX_HINT),
        ("a: 1\n  b: 2\n", SYNTAX_HINT),
        ("a: &b 1\n", ""),
        ("a: 1\na: 2\n", ""),
        ("a: 012\n", 'quote every value that is text, above all versions: python: "3.10"'),
    ],
)
def test_the_hint_follows_the_cause(text: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_yaml(text, "file.yaml")
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    "path",
    sorted([ROOT / "matrix.yaml", *ROOT.glob("templates/**/*.yaml")]),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_pyyaml_without_libyaml_reads_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = read_yaml(path, "file.yaml")
    monkeypatch.setattr("drydock.config.strict_yaml._LOADER", yaml.SafeLoader)
    assert read_yaml(path, "file.yaml") == quick
