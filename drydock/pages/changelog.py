"""CHANGELOG.md → releases, and what to do before an upgrade. Pure, except read_changelog.

A line is expected to be what CONTRIBUTING.md ("Releases") says; anything else is an error, so that no note is lost.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from drydock.core.errors import InputError
from drydock.core.paths import ROOT

FILE = "CHANGELOG.md"
UNRELEASED = "Unreleased"
BEFORE, ADDED, CHANGED, DEPRECATED, REMOVED = "Before you upgrade", "Added", "Changed", "Deprecated", "Removed"
SECTIONS = (BEFORE, ADDED, CHANGED, DEPRECATED, REMOVED, "Fixed", "Security")
_HEADING = re.compile(r"(?P<version>(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}) - (?P<date>\d{4}-\d\d-\d\d)", re.ASCII)


class Release(NamedTuple):
    """What changed in one release."""

    version: str
    """Empty: not released yet."""
    date: str
    """Empty: not released yet."""
    about: str
    """Text above the first section."""
    sections: Mapping[str, tuple[str, ...]]
    """Section → its entries, each on one line."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is written about it."""
        return not (self.about or any(self.sections.values()))

    @property
    def text(self) -> str:
        """Return it as Markdown, without its heading."""
        parts = (
            "\n".join((f"### {name}\n", *(f"- {entry}" for entry in entries)))
            for name, entries in self.sections.items()
        )
        return "\n\n".join(filter(None, (self.about, *parts)))


class UpgradeNote(NamedTuple):
    """What to do, or to know, before one upgrades to a release."""

    version: str
    """Empty: not released yet."""
    entries: tuple[str, ...]


def read_changelog(path: Path = ROOT / FILE) -> tuple[Release, ...]:
    """Return what is unreleased, then the releases, the newest first. Raises InputError."""
    try:
        return parse_changelog(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def list_upgrade_notes(releases: Iterable[Release], newer_than: str) -> tuple[UpgradeNote, ...]:
    """Return what to do before an upgrade from a version, the newest release first.

    What is unreleased counts as newer than every release; a released drydock has none of it.
    """
    old = Version(newer_than)
    newer = (release for release in releases if not release.version or Version(release.version) > old)
    return tuple(
        UpgradeNote(release.version, release.sections[BEFORE]) for release in newer if BEFORE in release.sections
    )


def insert_release_heading(text: str, version: str, date: str) -> str:
    """Return the text of the file in which what is unreleased is a release."""
    return text.replace(f"## {UNRELEASED}\n", f"## {UNRELEASED}\n\n## {version} - {date}\n", 1)


def parse_changelog(text: str) -> tuple[Release, ...]:
    """Return what is unreleased, then the releases, the newest first. Raises InputError with every problem."""
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    line = head.count("\n") + 1
    problems: list[str] = []
    releases: list[Release] = []
    for part in parts:
        releases.append(_parse_release(part, line, problems))
        line += part.count("\n")
    problems += _find_disorder(releases)
    if problems:
        raise InputError(*(f"{FILE}{problem}" for problem in problems), hint="CONTRIBUTING.md shows the form: Releases")
    return tuple(releases)


def _parse_release(part: str, line: int, problems: list[str]) -> Release:
    heading, *lines = part.splitlines()
    heading_match = _HEADING.fullmatch(heading)
    if heading != UNRELEASED and not (heading_match and _is_date(heading_match["date"])):
        problems.append(f":{line}: found ## {heading}, expected ## {UNRELEASED} or ## 1.2.0 - 2026-11-30")
    about: list[str] = []
    sections: dict[str, list[str]] = {}
    entries: list[str] | None = None
    for number, text in enumerate(lines, line + 1):
        if text.startswith("### "):
            entries = _open_section(text.removeprefix("### "), number, sections, problems)
        elif entries is None:
            about.append(text.strip())
        elif text.startswith("- "):
            entries.append(text.removeprefix("- "))
        elif text.startswith("  ") and entries:
            entries[-1] += f" {text.strip()}"
        elif text.strip():
            problems.append(f":{number}: found {text[:60]!r}, expected '- ' and text, or two spaces and more of it")
    version_and_date = (heading_match["version"], heading_match["date"]) if heading_match else ("", "")
    return Release(
        *version_and_date, " ".join(filter(None, about)), {name: tuple(text) for name, text in sections.items()}
    )


def _open_section(name: str, number: int, sections: dict[str, list[str]], problems: list[str]) -> list[str]:
    if name not in SECTIONS:
        problems.append(f":{number}: unknown section {name!r}, expected one of: {', '.join(SECTIONS)}")
    if name in sections:
        problems.append(f":{number}: a second section {name!r} of one release")
    return sections.setdefault(name, [])


def _find_disorder(releases: Sequence[Release]) -> Iterator[str]:
    """Yield what is wrong with the order: Unreleased first and once, then each release older than the one above."""
    if not releases or releases[0].version:
        yield f": expected ## {UNRELEASED} before every release"
    versions = [item.version for item in releases[1:]]
    if "" in versions:
        yield f": found a second ## {UNRELEASED}, or a release without a version"
    parsed_versions = [Version(item) for item in versions if item]
    if parsed_versions != sorted(set(parsed_versions), reverse=True):
        yield f": releases are not in order, or one is there twice: {', '.join(versions)}; expected the newest first"


def _is_date(text: str) -> bool:
    try:
        return bool(dt.date.fromisoformat(text))
    except ValueError:
        return False
