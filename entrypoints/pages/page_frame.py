"""What the pages of plan, check and topology share: the frame with the answer on top, and a command with its reasons.

Pure. Everything that comes from the host or the user is escaped. A page loads nothing and runs no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from shlex import quote
from string import Template
from typing import NamedTuple

from entrypoints.checks.findings import SEVERITIES
from entrypoints.core.records import Reason
from entrypoints.core.text import format_count


class Figure(NamedTuple):
    """One part of the answer, in large and small letters."""

    large: str
    small: str = ""
    tone: str = ""
    """A class of the style: a severity in small letters."""


def render_page(kind: str, title: str, about: Iterable[str], answer: Iterable[Figure], sections: Iterable[str]) -> str:
    """Return a page: what it is and of what, the answer, then the sections, which are HTML."""
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        kind=escape(kind),
        title=escape(title),
        about=escape(" · ".join(about)),
        answer="".join(map(_render_figure, answer)),
        sections="".join(sections),
    )


def render_section(title: str, body: str) -> str:
    """Return a section of HTML."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n" if body else ""


def make_summary_figure(severities: Mapping[str, int], worst: str) -> Figure:
    """Return how many findings there are of each severity, and the worst one in words."""
    counts = [f"{severities[name]} {name}" for name in SEVERITIES[:-1] if severities.get(name)]
    passed = severities.get("PASS", 0)
    other_counts = [*counts[1:], *([f"{format_count(passed, 'check')} passed"] if passed else [])]
    if not counts:
        return Figure("No findings", ", ".join(other_counts), "pass")
    tone = counts[0].split()[1].lower()
    return Figure(counts[0], "; ".join(filter(None, (worst, ", ".join(other_counts)))), tone)


def shorten_to_clause(text: str) -> str:
    """Return the first clause of a text."""
    for end in (". ", "; ", ": "):
        text = text.partition(end)[0]
    return text.removesuffix(".")


def _render_figure(figure: Figure) -> str:
    return f'<li class="{figure.tone}"><b>{escape(figure.large)}</b><span>{escape(figure.small)}</span></li>\n'


# --- a command and its reasons --------------------------------------------------------------------------------------


def render_command(env: Mapping[str, str], argv: tuple[str, ...], reasons: Iterable[Reason], folder: str = "") -> str:
    """Return a command as HTML, a variable or flag on each line, with its reason. Then the other reasons.

    Variables that name a place below `folder` are folded away.
    """
    reasons_by_setting = {reason.setting: reason for reason in reasons}
    caches: list[str] = []
    other_lines: list[str] = []
    flags: list[str] = []
    for name, value in env.items():
        line = _render_line(f"{quote(name)}={quote(value)} \\", reasons_by_setting.pop(name, None))
        (caches if folder and value.startswith(f"{folder}/") else other_lines).append(line)
    lines = split_command_lines(argv)
    for place, line in enumerate(lines):
        reason = reasons_by_setting.pop(line.split(" ", 1)[0].split("=", 1)[0], None)
        flags.append(_render_line(line if place == len(lines) - 1 else f"{line} \\", reason))
    title = f"{format_count(len(caches), 'variable')} for caches below {folder}"
    folded = f"<details><summary>{escape(title)}</summary>{''.join(caches)}</details>" if caches else ""
    other_lines_html = "".join(
        _render_line(f"{reason.setting} = {reason.value}", reason) for reason in reasons_by_setting.values()
    )
    also = f"<h3>Also decided</h3><div class='lines'>{other_lines_html}</div>" if other_lines_html else ""
    return f"<div class='lines'>{folded}{''.join((*other_lines, *flags))}</div>{also}"


def split_command_lines(argv: tuple[str, ...]) -> list[str]:
    """Return a command as lines of a shell: the program, then a flag with its values on each."""
    lines: list[str] = []
    for place, word in enumerate(argv):
        starts = word.startswith("-") and not word[1:2].isdigit() and (place, word) != (1, "-m")
        if not lines or starts:
            lines.append(quote(word))
        else:
            lines[-1] += f" {quote(word)}"
    return lines


def _render_line(code: str, reason: Reason | None) -> str:
    """Return a line of code that opens to its reason."""
    if reason is None:
        return f"<p><code>{escape(code)}</code></p>\n"
    refused = "".join(f"<li>not {escape(text)}</li>" for text in reason.instead)
    origin = f" <small>{escape(reason.origin)}</small>" if reason.origin else ""
    return (
        f"<details><summary><code>{escape(code)}</code> <span>{escape(reason.because)}{origin}</span></summary>"
        f"{f'<ul>{refused}</ul>' if refused else ''}</details>\n"
    )
