"""A log → the text in which failures are looked for: bounded, without colours and without what collectors add.

Pure, but for `read_log`. The cause of a failure is mostly near the top of a log and its end at the bottom, so both are
kept as they are; of what lies between, only lines that look like trouble.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from entrypoints.core.text import unescaped

HEAD, MIDDLE, TAIL = 1 << 20, 1 << 20, 1 << 20
"""Bytes that are kept of a log: of its beginning, of lines between, of its end."""
_CHUNK = 1 << 20
_LONGEST = 8 << 10
"""Bytes that are kept of a line between."""
_TROUBLE = (
    b"rror", b"ERROR", b"xception", b"ailed", b"ailure", b"FAIL", b"annot", b"atal", b"FATAL", b"WARN", b"exit",
    b"illed", b"bort", b"out of memory", b"not support", b"must be", b"refused", b"denied", b"timed out", b"No such",
    b"Unable", b"nvalid", b"Xid",
)  # fmt: skip
"""Parts of words that are in the lines of nearly all known failures; a test counts those without."""

_VISIBLE_ESCAPE = re.compile(r"(?:\^\[|#033|\\x1b|\\033|\\u001b)\[[0-9;]{0,16}m")
"""Colours as journald, rsyslog and shells write them where a terminal does not read them."""
_MESSAGE = ("log", "message", "msg", "MESSAGE", "textPayload", "event", "line", "text")
"""Keys of a line's text: Docker, Fluentd, Loki, journald, Google Cloud, structlog, Vector, loguru."""
_NESTED = ("jsonPayload", "record")
_MORE = ("error", "err", "exception", "exc_info", "stack", "stacktrace", "traceback")
_BYTES = range(256)
_LEVEL = ("level", "severity", "levelname", "lvl")


def read_log(stream: BinaryIO) -> str:
    """Read a log to its end; return its beginning, its end, and the lines between that look like trouble. IO."""
    head = _whole_lines(stream.read(HEAD), stream)
    sieve, held = _Sieve(), b""
    while chunk := stream.read(_CHUNK):
        held += chunk
        if len(held) > TAIL + _CHUNK:
            cut = held.rfind(b"\n", 0, len(held) - TAIL) + 1 or len(held) - TAIL
            sieve.add(held[:cut])
            held = held[cut:]
    return b"\n".join((head, *sieve.lines, held)).decode("utf-8", "replace")


def _whole_lines(head: bytes, stream: BinaryIO) -> bytes:
    """Return the beginning with the rest of its last line, which may be the one that counts."""
    return head if len(head) < HEAD or head.endswith(b"\n") else head + stream.readline(_LONGEST)


class _Sieve:
    """Lines that look like trouble, the first of those that differ only in numbers."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._free = MIDDLE
        self._seen: set[int] = set()

    def add(self, part: bytes) -> None:
        """Take the next whole lines of the log."""
        if self._free > 0:
            lines = {place: line for word in _TROUBLE for place, line in _lines_with(part, word)}
            for place in sorted(lines):
                self._keep(lines[place])

    def _keep(self, line: bytes) -> None:
        key = hash(line.translate(None, b"0123456789"))
        if key not in self._seen and self._free > 0:
            self._seen.add(key)
            self._free -= len(line) + 1
            self.lines.append(line)


def _lines_with(part: bytes, word: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each line with a word, and where it begins."""
    at = part.find(word)
    while at >= 0:
        start, end = part.rfind(b"\n", 0, at) + 1, part.find(b"\n", at)
        end = end if end >= 0 else len(part)
        start = max(start, at - _LONGEST // 2)
        yield start, part[start : min(end, start + _LONGEST)]
        at = part.find(word, end)


def clean(text: str) -> str:
    """Return a log as the programs wrote it: without colours, progress bars' returns, and the JSON of collectors."""
    plain = unescaped(_VISIBLE_ESCAPE.sub("", text)).replace("\r", "\n")
    if '{"' not in plain:
        return plain
    return "\n".join(
        _message(line) if '{"' in line and line.rstrip().endswith("}") else line for line in plain.split("\n")
    )


def _message(line: str) -> str:
    """Return what a line of JSON says; the line itself if it is none, or has no message."""
    try:
        record = json.loads(line[line.index('{"') :])
    except (ValueError, RecursionError):
        return line
    if not isinstance(record, dict):
        return line
    record |= next((record[name] for name in _NESTED if isinstance(record.get(name), dict)), {})
    message = next((_as_text(record[name]) for name in _MESSAGE if record.get(name)), "")
    if not message:
        return line
    more = (record[name] for name in _MORE if isinstance(record.get(name), str))
    return unescaped("\n".join((f"{_level(record, message)}{message.rstrip()}", *more)))


def _as_text(value: Any) -> str:
    """Return a message; journald writes those with a colour as numbers of bytes."""
    if isinstance(value, list):
        return bytes(each for each in value if each in _BYTES).decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _level(record: Mapping[str, Any], message: str) -> str:
    level = next((record[name].upper() for name in _LEVEL if isinstance(record.get(name), str)), "")
    return f"{level} " if level and level not in message else ""
