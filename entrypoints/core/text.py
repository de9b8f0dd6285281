"""Text of a model folder, a recorded host or a cache entry, in a form that a terminal can show.

Pure, except `emit` and `tell`.
"""

from __future__ import annotations

import sys

from entrypoints.core.errors import HOST, EntrypointError

_SPACES = "\n\t\u00a0\u3000"
"""Spaces that are not printable to Python: newline, tab, no-break space, and Chinese's."""


def printable(text: str) -> str:
    """Return text with characters that a terminal obeys or hides, except newlines and tabs, as JSON's escapes.

    Such as the escape that starts colours and window titles, and marks that reverse the direction of text. In a JSON
    document they occur only inside strings, so it stays the same document.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in _SPACES else _escaped(character) for character in text
    )


def emit(text: str) -> None:
    """Write data to standard output, in printable form. IO. Raises HOST."""
    try:
        sys.stdout.write(printable(text))
        sys.stdout.flush()
    except (OSError, AttributeError) as error:  # None if standard output was closed before the start
        sys.stdout = None  # or Python fails again at the end, and exits with 120
        raise EntrypointError(HOST, f"cannot write to standard output: {error}") from error


def tell(text: str) -> None:
    """Write lines to standard error, in printable form. IO.

    Without a reader, as after `docker run … 2>&1 | head`, nothing is written: a server goes on without its log.
    """
    try:
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()
    except (OSError, AttributeError):  # None if it was closed before the start
        sys.stderr = None  # or Python fails again at the end, and exits with 120


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 device`, `2 devices`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_line(text: str) -> str:
    """Return text in printable form on one line, where a newline would begin what looks like another entry."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
