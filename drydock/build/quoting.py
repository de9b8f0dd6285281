"""Data → text of a Dockerfile: a word of a shell, a value of an instruction, a line of a comment. Pure.

Templates print data in no other way: `printed` refuses text that is neither quoted by a function of this module nor a
plain word, which means the same with and without quotes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Undefined

from drydock.model.names import UNSEEN

PLAIN = re.compile(r"(?:[A-Za-z0-9_./:+][A-Za-z0-9_./:+-]*)?")
_GLOBS = re.compile(r"([*?\[\]])")


class Quoted(str):
    """Text that is safe in a Dockerfile: quoted data, and a template's own words around it."""

    __slots__ = ()


def sh(value: object) -> Quoted:
    """Return data as one word of a shell. Raises ValueError for more than one line."""
    return Quoted(shlex.quote(_require_one_line(value)))


def glob(value: object) -> Quoted:
    """Return a pattern of file names as one word of a shell that expands *, ? and [ ]."""
    parts = _GLOBS.split(_require_one_line(value))
    return Quoted("".join(part if _GLOBS.fullmatch(part) else shlex.quote(part) for part in parts if part))


def dockerfile(value: object) -> Quoted:
    """Return data as one value of ENV, LABEL or ARG."""
    text = re.sub(r'(["\\$])', r"\\\1", _require_one_line(value))
    return Quoted(f'"{text}"')


def comment(value: object) -> Quoted:
    """Return data as text of a comment."""
    return Quoted(_require_one_line(value))


def script(value: str) -> Quoted:
    """Return what a template wrote itself, in a {% set %} block; data in it is quoted already."""
    return Quoted(value)


def join_words(*parts: str, by: str = " ") -> Quoted:
    """Join quoted or plain words."""
    return Quoted(by.join(require_quoted(part) for part in parts))


def require_quoted(value: Any) -> Any:
    """Return what a template prints. Raises ValueError for text that must be quoted first."""
    if isinstance(value, Quoted | int | Undefined) or PLAIN.fullmatch(str(value)):
        return value
    raise ValueError(f"{str(value)!r} must be quoted: use `| sh`, `| glob`, `| dockerfile` or `| comment`")


FILTERS: Mapping[str, Callable[..., Any]] = {
    "sh": sh,
    "glob": glob,
    "dockerfile": dockerfile,
    "comment": comment,
    "script": script,
}


def _require_one_line(value: object) -> str:
    text = str(value)
    if UNSEEN.search(text):
        raise ValueError(f"{text!r} is not text on one line")
    return text
