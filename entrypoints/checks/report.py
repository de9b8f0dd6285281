"""Findings → what `check` prints: worst first, wrapped and coloured for a terminal, a summary.

Pure, except `look_at_output`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    count_severities,
    format_headline,
    list_finding_details,
    sort_worst_first,
    summarize_findings,
)
from entrypoints.core.language import Words, translate_phrase
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


def look_at_output(env: Mapping[str, str], words: Words = IN_ENGLISH) -> Look:
    """Look at standard output: a terminal has a size, and colours unless NO_COLOR is set (no-color.org). IO."""
    if not sys.stdout.isatty():
        return Look(words=words)
    from shutil import get_terminal_size

    size = get_terminal_size()
    coloured = not env.get("NO_COLOR") and env.get("TERM", "dumb") not in ("", "dumb", "unknown")
    return Look(size.columns, size.lines, coloured, words)


def format_check_report(
    findings: Sequence[Finding], variant: str, only: Sequence[str], where: Look, last: Collection[str] = ()
) -> str:
    """Return the findings of these severities, or else all but PASS, with a summary of all; ids in `last` come last.

    The text is printable; the only escapes in it are its own colours.
    """
    selected_findings = (
        finding for finding in findings if (finding.severity in only if only else finding.severity != PASS)
    )
    shown_findings = sort_worst_first(selected_findings, last)
    body = [line for finding in shown_findings for line in _format_report_lines(finding, where)]
    total = _format_summary(findings, variant, where)
    top = [total, ""] if len(body) > where.height else []
    hints = (
        [] if only else [line for hint in _list_hints(findings, where.words) for line in _wrap_text(hint, "", where)]
    )
    return "".join(f"{line}\n" for line in (*top, *body, *([""] if body else []), total, *hints))


def _format_report_lines(finding: Finding, where: Look) -> Iterator[str]:
    """Yield the lines of a finding. Those of a fix end only after punctuation, so that its commands can be copied."""
    first, *more = _wrap_text(format_headline(finding), INDENT, where)
    yield _paint_text(finding.severity, _COLOURS[finding.severity], where) + first.removeprefix(finding.severity)
    yield from more
    fix, *based = list_finding_details(finding, where.words) or ("",)
    if based:
        yield from _wrap_text(f"{INDENT}{fix}", INDENT, where, at=_AFTER_PUNCTUATION)
        lines = _wrap_text(f"{INDENT}{translate_phrase(where.words, '; ').join(based)}", INDENT, where)
        yield from (f"{INDENT}{_paint_text(line.removeprefix(INDENT), _DIM, where)}" for line in lines)


def _wrap_text(text: str, indent: str, where: Look, at: str = _ANYWHERE) -> list[str]:
    """Return text in lines of the width, which end where `at` matches; a longer piece stays whole."""
    text = printable(text).replace("\n", " ")
    if not where.width:
        return [text]
    first, *pieces = re.split(at, text)
    lines = [first]
    for piece in pieces:
        if _count_columns(f"{lines[-1]}{piece.rstrip()}") <= where.width:
            lines[-1] += piece
        else:
            lines.append(f"{indent}{piece}")
    return [line.rstrip() for line in lines]


def _count_columns(text: str) -> int:
    """Return how many columns text takes: Chinese characters take two."""
    return len(text) + len(re.findall(_WIDE, text))


def _paint_text(text: str, parameters: str, where: Look) -> str:
    return f"\033[{parameters}m{text}\033[0m" if where.coloured else text


def _format_summary(findings: Sequence[Finding], variant: str, where: Look) -> str:
    text = summarize_findings(findings)
    for severity in SEVERITIES:
        text = text.replace(severity, _paint_text(severity, _COLOURS[severity], where))
    return f"{printable(variant)}: {text}"


def _list_hints(findings: Sequence[Finding], words: Words) -> Iterator[str]:
    """Yield how to see more, and what a script can fix."""
    if count_severities(findings).get(PASS):
        yield translate_phrase(words, "`check --only pass` lists what passed.")
    fixable = sum(bool(finding.fix) for finding in findings if finding.severity in (FAIL, WARN))
    if fixable:
        yield translate_phrase(
            words,
            "`check --fix-script` prints a script for the host that fixes {} of these, also after a restart.",
            str(fixable),
        )
