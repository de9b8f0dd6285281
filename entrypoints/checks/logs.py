"""A log → the text in which failures are looked for: bounded, without colours and without what collectors add.

Pure, but for `read_log`. The cause of a failure is mostly near the top of a log and its end at the bottom, so both are
kept as they are; of what lies between, only lines that look like trouble.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

from entrypoints.core.text import strip_escapes

HEAD, MIDDLE, TAIL = 1 << 20, 1 << 20, 1 << 20
"""Bytes that are kept of a log: of its beginning, of lines between, of its end."""
_CHUNK = 1 << 20
_LONGEST = 8 << 10
"""Bytes that are kept of a line between."""
_BEGINNING, _ALIKE = 128, 16
"""Bytes that make lines alike, and how many such lines are kept."""
_END, _SKIPPED = 64, 10_000
"""Bytes at each end that tell a line that is not kept, and how many such lines are remembered."""
_VARYING = b"0123456789abcdef-"
"""Bytes that do not count: times, addresses, ids of requests."""
_DENSE = 500
"""Lines of a mebibyte (of ten thousand) from which on looking at each line is faster than searching each word."""
_TROUBLE = (
    b"rror", b"ERROR", b"xception", b"ail", b"FAIL", b"atal", b"WARN", b" not ", b"illed", b"exit", b"timeout",
    b"denied",
)  # fmt: skip
"""Parts of words that are in the lines of nine of ten known failures; each takes 0.2 s for 200 MB."""

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
    head = _complete_last_line(stream.read(HEAD), stream)
    sieve, tail = _Sieve(), b""
    while chunk := stream.read(_CHUNK):
        tail += chunk
        if len(tail) > TAIL + _CHUNK:
            cut = tail.rfind(b"\n", 0, len(tail) - TAIL) + 1 or len(tail) - TAIL
            sieve.add(tail[:cut])
            tail = tail[cut:]
    return b"\n".join((head, *sieve.lines, tail)).decode("utf-8", "replace")


def _complete_last_line(head: bytes, stream: BinaryIO) -> bytes:
    """Return the beginning with the rest of its last line, which may be the one that counts."""
    return head if len(head) < HEAD or head.endswith(b"\n") else head + stream.readline(_LONGEST)


class _Sieve:
    """Lines that look like trouble; of those that begin alike, as errors of requests do, the first ones."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._free = MIDDLE
        self._counts: dict[bytes, int] = {}
        self._skipped: set[bytes] = set()
        """Beginnings and ends of lines that are not kept, such as those of answered requests."""

    def add(self, part: bytes) -> None:
        """Take the next whole lines of the log."""
        for line in _choose_lines(part) if self._free > 0 else ():
            self._keep(line[:_LONGEST])

    def _keep(self, line: bytes) -> None:
        ends = (line[:_END] + line[-_END:]).translate(None, _VARYING)
        if ends in self._skipped:
            return
        beginning = line[:_BEGINNING].translate(None, _VARYING)
        count = self._counts.get(beginning, 0)
        if count < _ALIKE and self._free > 0 and any(word in line for word in _TROUBLE):
            self._counts[beginning] = count + 1
            self._free -= len(line) + 1
            self.lines.append(line)
        elif len(self._skipped) < _SKIPPED:
            self._skipped.add(ends)


def _choose_lines(part: bytes) -> Iterable[bytes]:
    """Return the lines that may be trouble: those with a word, or every line where so many have one."""
    lines: dict[int, bytes] = {}
    for word in _TROUBLE:
        lines.update(islice(_find_lines_with(part, word), _DENSE))
        if len(lines) >= _DENSE:
            return part.split(b"\n")
    return [lines[place] for place in sorted(lines)]


def _find_lines_with(part: bytes, word: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each line with a word, and where it begins."""
    at = part.find(word)
    while at >= 0:
        start, end = part.rfind(b"\n", 0, at) + 1, part.find(b"\n", at)
        end = end if end >= 0 else len(part)
        start = max(start, at - _LONGEST // 2)
        yield start, part[start : min(end, start + _LONGEST)]
        at = part.find(word, end)


def clean_log(text: str) -> str:
    """Return a log as the programs wrote it: without colours, progress bars' returns, and the JSON of collectors."""
    plain = strip_escapes(_VISIBLE_ESCAPE.sub("", text)).replace("\r", "\n")
    if '{"' not in plain:
        return plain
    return "\n".join(
        _parse_log_message(line) if '{"' in line and line.rstrip().endswith("}") else line for line in plain.split("\n")
    )


def _parse_log_message(line: str) -> str:
    """Return what a line of JSON says; the line itself if it is none, or has no message."""
    try:
        record = json.loads(line[line.index('{"') :])
    except (ValueError, RecursionError):
        return line
    if not isinstance(record, dict):
        return line
    record |= next((record[name] for name in _NESTED if isinstance(record.get(name), dict)), {})
    message = next((_decode_message(record[name]) for name in _MESSAGE if record.get(name)), "")
    if not message:
        return line
    more = (record[name] for name in _MORE if isinstance(record.get(name), str))
    return strip_escapes("\n".join((f"{_format_level(record, message)}{message.rstrip()}", *more)))


def _decode_message(value: Any) -> str:
    """Return a message; journald writes those with a colour as numbers of bytes."""
    if isinstance(value, list):
        return bytes(byte for byte in value if byte in _BYTES).decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _format_level(record: Mapping[str, Any], message: str) -> str:
    level = next((record[name].upper() for name in _LEVEL if isinstance(record.get(name), str)), "")
    return f"{level} " if level and level not in message else ""
