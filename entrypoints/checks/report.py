"""Findings → what `check` prints: worst first, wrapped and coloured for a terminal, a summary. Pure, except `look`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from entrypoints.checks.findings import (
    FAIL,
    IN_ENGLISH,
    INDENT,
    INFO,
    PASS,
    SEVERITIES,
    UNKNOWN,
    WARN,
    counts,
    details,
    head,
    summary,
    worst_first,
)
from entrypoints.core.language import Words, phrase
from entrypoints.core.records import Finding
from entrypoints.core.text import printable

_COLOURS = {FAIL: "1;31", WARN: "33", UNKNOWN: "35", INFO: "36", PASS: "32"}
"""Severity → parameters of the escape that colours it."""
_DIM = "2"
_WIDE = "[\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6]"
"""Characters of two columns (Unicode, East Asian Width)."""
_AFTER_PUNCTUATION = "(?<=[;,] )|(?<=[；，。])"
_ANYWHERE = f"(?<=[^ ] )|(?<={_WIDE})(?![；，。：、）”])"
"""Where a line may end: after a space, and after a Chinese character, unless punctuation follows it."""
_LONG = 24
"""Lines of a report that begins with the summary too, where it is not on a terminal."""


class Look(NamedTuple):
    """Where a report is shown."""

    width: int = 0
    """Columns to wrap at; 0 for none."""
    height: int = _LONG
    """Lines that are seen at once."""
    coloured: bool = False
    words: Words = IN_ENGLISH


def look(env: Mapping[str, str], words: Words = IN_ENGLISH) -> Look:
    """Look at standard output: a terminal has a size, and colours unless NO_COLOR is set (no-color.org). IO."""
    if not sys.stdout.isatty():
        return Look(words=words)
    from shutil import get_terminal_size

    size = get_terminal_size()
    coloured = not env.get("NO_COLOR") and env.get("TERM", "dumb") not in ("", "dumb", "unknown")
    return Look(size.columns, size.lines, coloured, words)


def report(findings: Sequence[Finding], variant: str, only: Sequence[str], where: Look) -> str:
    """Return the findings of these severities, or else all but PASS, with a summary of all.

    The text is printable; the only escapes in it are its own colours.
    """
    shown = worst_first(each for each in findings if (each.severity in only if only else each.severity != PASS))
    body = [line for finding in shown for line in _lines(finding, where)]
    total = _summary(findings, variant, where)
    top = [total, ""] if len(body) > where.height else []
    hints = [] if only else [line for hint in _hints(findings, where.words) for line in _wrapped(hint, "", where)]
    return "".join(f"{line}\n" for line in (*top, *body, *([""] if body else []), total, *hints))


def _lines(finding: Finding, where: Look) -> Iterator[str]:
    """Yield the lines of a finding. Those of a fix end only after punctuation, so that its commands can be copied."""
    first, *more = _wrapped(head(finding), INDENT, where)
    yield _painted(finding.severity, _COLOURS[finding.severity], where) + first.removeprefix(finding.severity)
    yield from more
    fix, *based = details(finding, where.words) or ("",)
    if based:
        yield from _wrapped(f"{INDENT}{fix}", INDENT, where, at=_AFTER_PUNCTUATION)
        lines = _wrapped(f"{INDENT}{phrase(where.words, '; ').join(based)}", INDENT, where)
        yield from (f"{INDENT}{_painted(line.removeprefix(INDENT), _DIM, where)}" for line in lines)


def _wrapped(text: str, indent: str, where: Look, at: str = _ANYWHERE) -> list[str]:
    """Return text in lines of the width, which end where `at` matches; a longer piece stays whole."""
    text = printable(text).replace("\n", " ")
    if not where.width:
        return [text]
    first, *pieces = re.split(at, text)
    lines = [first]
    for piece in pieces:
        if _columns(f"{lines[-1]}{piece.rstrip()}") <= where.width:
            lines[-1] += piece
        else:
            lines.append(f"{indent}{piece}")
    return [line.rstrip() for line in lines]


def _columns(text: str) -> int:
    """Return how many columns text takes: Chinese characters take two."""
    return len(text) + len(re.findall(_WIDE, text))


def _painted(text: str, parameters: str, where: Look) -> str:
    return f"\033[{parameters}m{text}\033[0m" if where.coloured else text


def _summary(findings: Sequence[Finding], variant: str, where: Look) -> str:
    text = summary(findings)
    for severity in SEVERITIES:
        text = text.replace(severity, _painted(severity, _COLOURS[severity], where))
    return f"{printable(variant)}: {text}"


def _hints(findings: Sequence[Finding], words: Words) -> Iterator[str]:
    """Yield how to see more, and what a script can fix."""
    if counts(findings).get(PASS):
        yield phrase(words, "`check --only pass` lists what passed.")
    fixable = sum(bool(each.fix) for each in findings if each.severity in (FAIL, WARN))
    if fixable:
        yield phrase(
            words,
            "`check --fix-script` prints a script for the host that fixes {} of these, also after a restart.",
            str(fixable),
        )
