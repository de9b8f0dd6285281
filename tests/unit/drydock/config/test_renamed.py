"""An old name of an option or key works with a warning, until a release that may change names has warned of it."""

from __future__ import annotations

from typing import Any

import pytest

from drydock.config.renamed import (
    KEYS,
    OPTIONS,
    OldName,
    current_option,
    find_outlived_names,
    with_new_keys,
)
from drydock.config.strict_yaml import parse_yaml
from drydock.config.validation import validate_document
from drydock.core.errors import InputError
from drydock.model.project_record import ProjectFile

TABLE = (
    OldName("build", "--quick", "--fast", "0.2.0"),
    OldName("build", "--slow", "", "0.2.0", "it is never slow"),
    OldName("Stack", "checks.*.wrong", "text", "0.2.0"),
    OldName("Stack", "envs", "env", "0.2.0"),
    OldName("Stack", "gone", "", "0.2.0", "nothing needs it"),
)
TEXT = """
envs: {A: "1"}
checks:
  - {id: X-1, wrong: one}
  - {id: X-2, text: two}
gone: [1]
"""


def test_an_option_has_its_present_name_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert current_option("build", "--quick", TABLE) == "--fast"
    assert capsys.readouterr().err == ("warning: build: --quick is now --fast; a later release refuses the old name\n")
    assert current_option("build", "--slow", TABLE) is None
    assert "--slow has no effect any more: it is never slow" in capsys.readouterr().err


def test_another_option_or_task_keeps_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert current_option("fetch", "--quick", TABLE) == "--quick"
    assert current_option("build", "--fast", TABLE) == "--fast"
    assert capsys.readouterr().err == ""


def test_a_key_has_its_present_name_and_keeps_its_position(capsys: pytest.CaptureFixture[str]) -> None:
    document = with_new_keys("Stack", parse_yaml(TEXT, "stack.yaml"), TABLE)

    assert document.data == {"env": {"A": "1"}, "checks": [{"id": "X-1", "text": "one"}, {"id": "X-2", "text": "two"}]}
    assert [*document.data] == ["env", "checks"]
    assert document.places["env", "A"].line == 2
    assert document.places["checks", 0, "text"].line == 4
    assert ("gone", 0) not in document.places
    assert [*with_new_keys("Stack", parse_yaml(TEXT, "stack.yaml"), TABLE).data] == [*document.data]
    ends = "; a later release refuses the old name"
    assert capsys.readouterr().err.splitlines() == [  # each once, however often the file is read
        f"warning: stack.yaml: checks[0].wrong: wrong is now text (line 4, column 22){ends}",
        f"warning: stack.yaml: envs: envs is now env (line 2, column 1){ends}",
        f"warning: stack.yaml: gone: gone has no effect any more: nothing needs it (line 6, column 1){ends}",
    ]


def test_both_names_at_once_are_an_error() -> None:
    with pytest.raises(InputError, match=r"envs: envs is now env, and both are there \(line 2") as raised:
        with_new_keys("Stack", parse_yaml(f"{TEXT}env: {{}}\n", "stack.yaml"), TABLE)
    assert raised.value.hint == "remove envs"


@pytest.mark.parametrize("data", [None, [], "text", {"checks": "text"}, {"checks": {"a": 1}}, {"checks": [None]}])
def test_other_shapes_are_left_to_the_validation(data: Any) -> None:
    document = parse_yaml("a: 1\n", "stack.yaml")._replace(data=data)
    assert with_new_keys("Stack", document, TABLE).data == data


def test_the_validation_reads_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (OldName("ProjectFile", "title", "name", "0.2.0"),)
    monkeypatch.setattr(with_new_keys, "__defaults__", (table,))
    assert validate_document(ProjectFile, parse_yaml("schema: 1\ntitle: acme\n", "drydock.yaml")).name == "acme"


@pytest.mark.parametrize(
    ("version", "released", "goes"),
    [
        ("0.2.1", ["0.2.0"], False),
        ("0.3.0", ["0.2.0"], False),
        ("0.3.0", ["0.2.1", "0.2.0"], True),
        ("0.3.1", ["0.3.0", "0.2.0"], False),
        ("0.4.0", ["0.3.1", "0.3.0", "0.2.0"], True),
        ("1.0.0", ["0.3.0", "0.2.0"], True),
    ],
)
def test_an_entry_goes_when_a_release_has_warned_and_names_may_change(
    version: str, released: list[str], *, goes: bool
) -> None:
    assert bool(find_outlived_names(version, released, TABLE[:1])) == goes


def test_an_entry_stays_within_a_major_version_from_1_0_on() -> None:
    table = (OldName("build", "--quick", "--fast", "1.2.0"),)
    assert find_outlived_names("1.9.0", ["1.3.0", "1.2.0"], table) == []
    assert find_outlived_names("2.0.0", ["1.3.0", "1.2.0"], table) == [*table]


def test_entries_say_what_to_do() -> None:
    assert all(old.new or old.because for old in (*OPTIONS, *KEYS))
