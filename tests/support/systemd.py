"""Reads a command line as systemd does (systemd.syntax(7), systemd.service(5), systemd.unit(5))."""

from __future__ import annotations

import re

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|((?:[^\s"\\]|\\.)+)', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "s": " "}


def unquoted(line: str) -> list[str]:
    """Return the words of a line: without quotes and escapes, and with % and $ expanded, which must be none."""
    return [_expanded(_ESCAPE.sub(_char, quoted if bare == "" else bare)) for quoted, bare in _WORD.findall(line)]


def _char(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _NAMED.get(match[2], match[2])


def _expanded(text: str) -> str:
    assert not re.search(r"[%$]", re.sub(r"%%|\$\$", "", text)), f"systemd would expand {text!r}"
    return text.replace("%%", "%").replace("$$", "$")
