"""Text of a model folder, a recorded host or a cache entry, in a form that a terminal can show. Pure."""

from __future__ import annotations

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


def one_line(text: str) -> str:
    """Return text in printable form on one line, where a newline would begin what looks like another entry."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
