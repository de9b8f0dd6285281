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
from entrypoints.core.text import counted


class Figure(NamedTuple):
    """One part of the answer, in large and small letters."""

    large: str
    small: str = ""
    tone: str = ""
    """A class of the style: a severity in small letters."""


def frame(kind: str, title: str, about: Iterable[str], answer: Iterable[Figure], sections: Iterable[str]) -> str:
    """Return a page: what it is and of what, the answer, then the sections, which are HTML."""
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        kind=escape(kind),
        title=escape(title),
        about=escape(" · ".join(about)),
        answer="".join(map(_figure, answer)),
        sections="".join(sections),
    )


def section(title: str, body: str) -> str:
    """Return a section of HTML."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n" if body else ""


def summary(severities: Mapping[str, int], worst: str) -> Figure:
    """Return how many findings there are of each severity, and the worst one in words."""
    found = [f"{severities[name]} {name}" for name in SEVERITIES[:-1] if severities.get(name)]
    passed = severities.get("PASS", 0)
    rest = [*found[1:], *([f"{counted(passed, 'check')} passed"] if passed else [])]
    if not found:
        return Figure("No findings", ", ".join(rest), "pass")
    tone = found[0].split()[1].lower()
    return Figure(found[0], "; ".join(filter(None, (worst, ", ".join(rest)))), tone)


def shortened(text: str) -> str:
    """Return the first clause of a text."""
    for end in (". ", "; ", ": "):
        text = text.partition(end)[0]
    return text.removesuffix(".")


def _figure(figure: Figure) -> str:
    return f'<li class="{figure.tone}"><b>{escape(figure.large)}</b><span>{escape(figure.small)}</span></li>\n'


# --- a command and its reasons --------------------------------------------------------------------------------------


def command(env: Mapping[str, str], argv: tuple[str, ...], reasons: Iterable[Reason], folder: str = "") -> str:
    """Return a command as HTML, a variable or flag on each line, with its reason. Then the other reasons.

    Variables that name a place below `folder` are folded away.
    """
    known = {reason.setting: reason for reason in reasons}
    caches: list[str] = []
    others: list[str] = []
    flags: list[str] = []
    for name, value in env.items():
        line = _line(f"{name}={quote(value)} \\", known.pop(name, None))
        (caches if folder and value.startswith(f"{folder}/") else others).append(line)
    lines = command_lines(argv)
    for place, line in enumerate(lines):
        reason = known.pop(line.split(" ", 1)[0].split("=", 1)[0], None)
        flags.append(_line(line if place == len(lines) - 1 else f"{line} \\", reason))
    title = f"{counted(len(caches), 'variable')} for caches below {folder}"
    folded = f"<details><summary>{escape(title)}</summary>{''.join(caches)}</details>" if caches else ""
    rest = "".join(_line(f"{reason.setting} = {reason.value}", reason) for reason in known.values())
    also = f"<h3>Also decided</h3><div class='lines'>{rest}</div>" if rest else ""
    return f"<div class='lines'>{folded}{''.join((*others, *flags))}</div>{also}"


def command_lines(argv: tuple[str, ...]) -> list[str]:
    """Return a command as lines of a shell: the program, then a flag with its values on each."""
    lines: list[str] = []
    for place, word in enumerate(argv):
        starts = word.startswith("-") and not word[1:2].isdigit() and (place, word) != (1, "-m")
        if not lines or starts:
            lines.append(quote(word))
        else:
            lines[-1] += f" {quote(word)}"
    return lines


def _line(code: str, reason: Reason | None) -> str:
    """Return a line of code that opens to its reason."""
    if reason is None:
        return f"<p><code>{escape(code)}</code></p>\n"
    refused = "".join(f"<li>not {escape(text)}</li>" for text in reason.instead)
    origin = f" <small>{escape(reason.origin)}</small>" if reason.origin else ""
    return (
        f"<details><summary><code>{escape(code)}</code> <span>{escape(reason.because)}{origin}</span></summary>"
        f"{f'<ul>{refused}</ul>' if refused else ''}</details>\n"
    )
