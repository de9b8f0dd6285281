from __future__ import annotations

import pytest

from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.pages.changelog import (
    BEFORE,
    FILE,
    Release,
    UpgradeNote,
    insert_release_heading,
    list_upgrade_notes,
    parse_changelog,
    read_changelog,
)

TEXT = """# Changelog

About it.

## Unreleased

### Before you upgrade

- Move the file,
  then lock.
- Second.

## 0.10.0 - 2026-11-30

### Added

- `--flag`.

## 0.9.0 - 2026-10-01

### Before you upgrade

- Stop it.

## 0.1.0 - 2026-01-01

The first
release.
"""


def test_releases_in_order() -> None:
    unreleased, newest, older, first = parse_changelog(TEXT)

    assert unreleased == Release("", "", "", {BEFORE: ("Move the file, then lock.", "Second.")})
    assert newest == Release("0.10.0", "2026-11-30", "", {"Added": ("`--flag`.",)})
    assert older.text == "### Before you upgrade\n\n- Stop it."
    assert first == Release("0.1.0", "2026-01-01", "The first release.", {})
    assert not first.is_empty


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.0", ["", "0.9.0"]),
        ("0.9.0", [""]),
        ("0.10.0", [""]),
        ("0.8.9", ["", "0.9.0"]),
    ],
)
def test_notes_are_those_of_newer_releases_and_of_what_is_unreleased(version: str, expected: list[str]) -> None:
    upgrade_notes = list_upgrade_notes(parse_changelog(TEXT), version)
    assert [note.version for note in upgrade_notes] == expected
    assert upgrade_notes[0] == UpgradeNote("", ("Move the file, then lock.", "Second."))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("## 0.9.0 - 2026-10-01", "## 0.9.0", ":19: found ## 0.9.0, expected"),
        ("## 0.9.0 - 2026-10-01", "## 0.9.0 - 2026-13-01", ":19: found ## 0.9.0 - 2026-13-01"),
        ("## 0.9.0 - 2026-10-01", "## v0.9.0 - 2026-10-01", ":19: found ## v0.9.0"),
        ("## 0.9.0 - 2026-10-01", "## 0.09.0 - 2026-10-01", ":19: found ## 0.09.0"),
        ("## 0.9.0 ", "## 0.11.0 ", "not in order"),
        ("## 0.9.0 ", "## 0.10.0 ", "one is there twice"),
        ("## Unreleased", "## 1.0.0 - 2026-12-01", "expected ## Unreleased before"),
        ("## 0.9.0 - 2026-10-01", "## Unreleased", "a second ## Unreleased"),
        ("### Added", "### Fix", ":15: unknown section 'Fix', expected one of: Before you upgrade, Added"),
        ("- Second.", "Second.", ":11: found 'Second.', expected '- '"),
        ("- Second.", "- Second.\n\n### Before you upgrade", ":13: a second section 'Before you upgrade'"),
        (TEXT, "", "expected ## Unreleased"),
    ],
)
def test_what_is_not_expected_is_an_error(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(InputError) as raised:
        parse_changelog(TEXT.replace(old, new, 1))
    assert message in str(raised.value)


def test_what_is_unreleased_becomes_a_release() -> None:
    before = parse_changelog(TEXT)
    empty, newest, *older = parse_changelog(insert_release_heading(TEXT, "0.11.0", "2026-12-24"))

    assert empty.is_empty
    assert newest == before[0]._replace(version="0.11.0", date="2026-12-24")
    assert older == [*before[1:]]


def test_that_of_drydock_is_read() -> None:
    releases = read_changelog()
    assert releases[0].version == ""
    assert list_upgrade_notes(releases, "0.0.1")
    assert (ROOT / FILE).is_file()
