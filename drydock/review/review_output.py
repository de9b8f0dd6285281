"""A review as text, JSON, SARIF, GitHub's annotations and GitLab's code quality report. Pure.

What is quoted was written by others. Here it begins no line, no workflow command, no link and no escape of a terminal.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from drydock.core.console import as_lines, printable
from drydock.core.errors import CommandRefusedError
from drydock.core.files import format_json
from drydock.review.place_findings import Level, PlaceFinding, ReviewedPlace
from drydock.review.tree_files import SkippedFile
from entrypoints.core.redact import redact_text
from entrypoints.core.text import format_one_line

TEXT_AT_MOST = 400
"""Characters of a quoted text; a flag's JSON may be of any length."""
ANNOTATIONS_AT_MOST = 50
"""GitHub shows no more of a run (docs.github.com, "Workflow commands for GitHub Actions": limits)."""
RULES = {Level.REFUSED: "vllm-would-not-start", Level.WARNING: "vllm-warning", Level.UNKNOWN: "vllm-not-known"}
_SARIF = {Level.REFUSED: "error", Level.WARNING: "warning", Level.UNKNOWN: "note"}
_GITLAB = {Level.REFUSED: "critical", Level.WARNING: "minor", Level.UNKNOWN: "info"}
_MARKDOWN = re.compile(r"([\\`\[\]<>!@])")


class Review(NamedTuple):
    """What a review gave."""

    folder: str
    to: str
    """The image that comes instead; empty for those next to the commands."""
    places: tuple[ReviewedPlace, ...]
    skipped: tuple[SkippedFile, ...]

    @property
    def counts(self) -> Counter[Level | None]:
        """Return how many commands have each level as their worst."""
        return Counter(place.level for place in self.places)


def raise_refused(review: Review) -> None:
    """Raise CommandRefusedError if a command would not start."""
    number = review.counts[Level.REFUSED]
    if number:
        raise CommandRefusedError(f"{number} of {len(review.places)} commands would not start")


def clean_line(text: str) -> str:
    """Return a text of others in one line, without what a terminal or a log of GitHub's obeys, or a secret."""
    line = printable(format_one_line(redact_text(text))).replace("##[", "## [")
    return line if len(line) <= TEXT_AT_MOST else f"{line[:TEXT_AT_MOST]}…"


def describe_finding(finding: PlaceFinding) -> str:
    """Return a finding as a sentence."""
    instead = f" → {finding.instead}" if finding.instead else ""
    return clean_line(f"{finding.level.word}: {clean_line(finding.part)[:120]}: {finding.because}{instead}")


def _list_findings(review: Review) -> Iterator[tuple[ReviewedPlace, PlaceFinding]]:
    yield from ((place, finding) for place in review.places for finding in place.findings)


def format_text(review: Review) -> str:
    """Format a review for people."""
    lines: list[str] = []
    for place in review.places:
        if place.findings:
            where, image = place.place, clean_line(place.place.image) or "no image"
            lines.append(f"./{clean_line(where.file)}:{where.line}: {image} ({clean_line(place.image.title)})")
            lines += [f"  line {finding.line}: {describe_finding(finding)}" for finding in place.findings]
    lines += [f"skipped ./{clean_line(skipped.path)}: {clean_line(skipped.because)}" for skipped in review.skipped]
    counts = review.counts
    parts = [f"{counts[level]} {level.word}" for level in reversed(Level)]
    to = f" with {clean_line(review.to)}" if review.to else ""
    lines.append(f"{len(review.places)} commands{to}: {', '.join(parts)}, {counts[None]} without a finding")
    return as_lines(lines)


def format_review_json(review: Review) -> str:
    """Format a review for programs; `level` is null for a command without a finding."""
    commands = [
        {
            "file": place.place.file,
            "line": place.place.line,
            "kind": place.place.kind,
            "image": redact_text(place.place.image),
            "versions": [version.title for version in place.image.versions],
            "known": place.image.how,
            "level": None if place.level is None else place.level.word,
            "findings": [
                {**finding._asdict(), "level": finding.level.word, "part": clean_line(finding.part)}
                for finding in place.findings
            ],
        }
        for place in review.places
    ]
    skipped = [item._asdict() for item in review.skipped]
    return _dump({"to": review.to, "commands": commands, "skipped": skipped})


def format_sarif(review: Review) -> str:
    """Format a review as SARIF 2.1.0, which GitHub's code scanning and editors show."""
    results = [
        {
            "ruleId": RULES[finding.level],
            "level": _SARIF[finding.level],
            "message": {"text": _without_markup(describe_finding(finding))},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": quote(place.place.file)},
                        "region": {"startLine": max(1, finding.line)},
                    }
                }
            ],
            "partialFingerprints": {"drydock/v1": _fingerprint(place, finding)},
        }
        for place, finding in _list_findings(review)
    ]
    rules = [{"id": rule, "shortDescription": {"text": level.word}} for level, rule in RULES.items()]
    driver = {"name": "drydock", "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}
    return _dump({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]})


def format_github(review: Review) -> str:
    """Format a review as annotations of a GitHub job; what is not known is counted alone."""
    kinds = {Level.REFUSED: "error", Level.WARNING: "warning"}
    listed_findings = sorted(
        (item for item in _list_findings(review) if item[1].level in kinds), key=lambda item: -item[1].level
    )
    lines = [
        f"::{kinds[finding.level]} file={_escape_property(place.place.file)},line={max(1, finding.line)}"
        f",title=vLLM::{_escape_data(describe_finding(finding))}"
        for place, finding in listed_findings[:ANNOTATIONS_AT_MOST]
    ]
    counts = ", ".join(f"{review.counts[level]} {level.word}" for level in reversed(Level))
    return as_lines([*lines, f"::notice title=vLLM::{len(review.places)} commands: {counts}"])


def _escape_data(text: str) -> str:
    """Return the text of a workflow command. Source: actions/toolkit, packages/core/src/command.ts, escapeData."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    """Return a value of a workflow command. Source: as above, escapeProperty."""
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


def format_gitlab(review: Review) -> str:
    """Format a review as a code quality report (docs.gitlab.com, "Code Quality", "Code Quality report format")."""
    issues = [
        {
            "description": _without_markup(describe_finding(finding)),
            "check_name": RULES[finding.level],
            "fingerprint": _fingerprint(place, finding),
            "severity": _GITLAB[finding.level],
            "location": {"path": place.place.file, "lines": {"begin": max(1, finding.line)}},
        }
        for place, finding in _list_findings(review)
    ]
    return _dump(issues)


def _dump(value: Any) -> str:
    """Return JSON in which no string begins a command of GitHub's logs: the same document, with an escape."""
    return format_json(value).replace("##[", "#\\u0023[")


def _without_markup(text: str) -> str:
    """Return a text of which no page makes links, pictures, code or mentions."""
    return _MARKDOWN.sub(r"\\\1", text)


def _fingerprint(place: ReviewedPlace, finding: PlaceFinding) -> str:
    """Return what stays the same if a file's other lines move."""
    parts = (place.place.file, place.place.image, finding.level.word, finding.part, finding.because)
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()


FORMATS: Mapping[str, Callable[[Review], str]] = {
    "text": format_text,
    "json": format_review_json,
    "sarif": format_sarif,
    "github": format_github,
    "gitlab": format_gitlab,
}
