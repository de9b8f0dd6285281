"""An old name of an option works with a warning, until a release that may change names has warned of it."""

from __future__ import annotations

import pytest

from drydock.config.renamed import (
    OPTIONS,
    OldName,
    current_option,
    find_outlived_names,
)

TABLE = (
    OldName("build", "--quick", "--fast", "0.2.0"),
    OldName("build", "--slow", "", "0.2.0", "it is never slow"),
)


def test_an_option_has_its_present_name_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert current_option("build", "--quick", TABLE) == "--fast"
    assert capsys.readouterr().err == ("warning: build: --quick is now --fast; a later release refuses the old name\n")
    assert current_option("build", "--slow", TABLE) is None
    assert "--slow has no effect any more: it is never slow" in capsys.readouterr().err


def test_another_option_or_task_keeps_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert current_option("fetch", "--quick", TABLE) == "--quick"
    assert current_option("build", "--fast", TABLE) == "--fast"
    assert capsys.readouterr().err == ""


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
    assert all(old.new or old.because for old in OPTIONS)
