"""Lines of a log, exit codes and ids of findings → the failures that they are known to mean. Pure, but for `read_tail`.

A failure is data of the image: failures.json, made of templates/failures.yaml and the accelerator's own file. Its
patterns are plain text in which * stands for any text. The pieces are searched one after the other, so no line makes
the search slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from entrypoints.core.language import Words, phrase
from entrypoints.core.text import one_line, unescaped

TAIL = 64 << 10
"""Bytes at the end of a log that are looked at."""
_SHOWN = 300
"""Characters of a line that are shown."""
_EXIT = re.compile(r'(?i)\bexit(?:ed)?(?:[ _-]?(?:with|code|status)){0,2}"?[ :=(]{0,9}(-?\d{1,3})(?!\d)')
"""As Docker, Kubernetes, Python and vLLM write an exit code; Python's is negative for a signal."""
_FINDING = re.compile(r"\b[A-Z]{2,8}-\d{3}\b")
_PAGE, _FINDINGS = "docs/failures.md", "docs/reference/findings.md"


class Match(NamedTuple):
    """A known failure, and the line that shows it."""

    id: str
    """Name of the failure, or id of the finding."""
    line: str
    cause: str
    remedy: str
    check: str
    """The finding that tells it before; empty for none."""
    source: str
    page: str


def with_failures(profile: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile with the content of failures.json: failures, and their texts in other languages."""
    texts = {
        language: {**words, **known.get("translations", {}).get(language, {})}
        for language, words in (profile.get("translations") or {}).items()
    }
    return {**profile, "failures": known.get("failures", {}), "translations": texts}


def explain(text: str, profile: Mapping[str, Any]) -> tuple[Match, ...]:
    """Return the failures and findings that are in a log, or in an exit code alone.

    In the order of their lines; those of a warning come last, because a healthy start has some too.
    """
    lines = unescaped(text).strip().splitlines()
    if len(lines) == 1 and re.fullmatch(r"-?\d{1,3}", lines[0]):
        lines = [f"exit code {lines[0]}"]
    return tuple(sorted(_matches(lines, profile), key=lambda match: "WARNING" in match.line))


def _matches(lines: list[str], profile: Mapping[str, Any]) -> Iterator[Match]:
    whole = "\n".join(lines)
    failures = {
        name: (each, [pattern.split("*") for pattern in each["patterns"] if pattern.partition("*")[0] in whole])
        for name, each in profile["failures"].items()
    }
    findings = {**{each["id"]: each for each in profile["checks"]}, **profile["findings"]}
    seen = set()
    for line in dict.fromkeys(lines):
        codes = {_shell_code(int(code)) for code in _EXIT.findall(line)}
        for name, (each, patterns) in failures.items():
            fits = any(_contains(line, pieces) for pieces in patterns) or not codes.isdisjoint(each["exits"])
            if name not in seen and fits:
                seen.add(name)
                shown = one_line(line.strip()[:_SHOWN])
                page = f"{_PAGE}#{name}"
                yield Match(name, shown, each["cause"], each["remedy"], each["check"] or "", each["source"], page)
        for number in _FINDING.findall(line):
            if number in findings and number not in seen:
                seen.add(number)
                each = findings[number]
                shown = one_line(line.strip()[:_SHOWN])
                yield Match(number, shown, each["text"], each["remediation"], number, each["source"], _FINDINGS)


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _contains(line: str, pieces: list[str]) -> bool:
    """Tell whether a line has all pieces, in this order."""
    at = 0
    for piece in pieces:
        found = line.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def as_text(matches: tuple[Match, ...], words: Words) -> str:
    """Return what to read about each failure, below the line that shows it."""
    return "\n".join(_block(each, words) for each in matches)


def _block(match: Match, words: Words) -> str:
    told = phrase(words, "`check` tells it before: {}", match.check) if match.check else ""
    lines = (
        match.cause,
        phrase(words, "what to do: {}", match.remedy),
        told,
        phrase(words, "source: {}", match.source),
        phrase(words, "more: {}", match.page),
    )
    return f"{match.line}\n" + "".join(f"        {line}\n" for line in lines if line)


def read_tail(stream: BinaryIO) -> str:
    """Read a log to its end; return its last bytes, undecodable ones replaced. IO."""
    tail = b""
    while chunk := stream.read(TAIL):
        tail = (tail + chunk)[-TAIL:]
    return tail.decode("utf-8", "replace")
