"""Asks a vendor's tool, and turns whatever goes wrong into a failure that says what. IO, through `run` alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from entrypoints.host.commands import NOT_FOUND
from entrypoints.host.host import Host, Result, Run

TIMEOUT = 20.0
"""Seconds that a tool gets: npu-smi and hl-smi take 1 to 5 on a machine with eight cards."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""What moves a terminal's cursor, colours it, or names its window (ECMA-48): CSI, OSC, and short sequences."""

_LITTLE = 240
"""Characters: nvidia-smi says in two sentences that its library is missing, the cause in the first."""

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


def ask(host: Host, run: Run, argv: tuple[str, ...], parse: Callable[[str], T]) -> T | None:
    """Return what `parse` makes of a tool's standard output; None where there is no such tool, or where it failed.

    A tool that fails, hangs, or prints what `parse` refuses (ValueError, which says what was expected and quotes the
    line) becomes a failure of the host; what one that failed printed before counts if it is understood, since tools
    that lose one of eight cards list the others. That the tool is absent is no failure by itself: its caller knows
    whether it had to be there.
    """
    name = " ".join(argv)
    result = run(argv, TIMEOUT)
    if result.rc == NOT_FOUND:
        return None
    if result.rc:
        _failed(host, argv, _telling(result) or f"exit {result.rc}")
    try:
        return parse(plain(result.stdout))
    except ValueError as error:
        if not result.rc:
            host.fail(name, _last_line(str(error)), "a layout that is understood")
        return None


def _failed(host: Host, argv: tuple[str, ...], said: str) -> None:
    """Note that a tool failed; one that says the same whatever it is asked is noted once."""
    if not any(failure.where.split()[0] == argv[0] and failure.found == said for failure in host.failures):
        host.fail(" ".join(argv), said, "the tool's answer")


def plain(text: str) -> str:
    """Return what a terminal would show of a text: tools that colour or underline do so into pipes too."""
    return _ESCAPE.sub("", text.removeprefix("\ufeff")).replace("\r\n", "\n")


def unknown(line: str, expected: str) -> ValueError:
    """Return the error for a line that is not understood: it quotes the line."""
    return ValueError(f"{line.strip()[:120]!r}, expected {expected}")


def _telling(result: Result) -> str:
    """Return why a tool failed: all that it said when that is little, else its last line."""
    text = plain(result.stderr if result.stderr.strip() else result.stdout)
    said = " ".join(text.split())
    return said if len(said) <= _LITTLE and said.isprintable() else _last_line(text)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:240] if lines else ""
