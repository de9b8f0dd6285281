"""Asks a vendor's tool, and turns whatever goes wrong into a failure that says what. IO, through `run` alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from entrypoints.commands import NOT_FOUND
from entrypoints.host import Host, Run

TIMEOUT = 20.0
"""Seconds that a tool gets: npu-smi and hl-smi take 1 to 5 on a machine with eight cards."""

T = TypeVar("T")


def ask(host: Host, run: Run, argv: tuple[str, ...], parse: Callable[[str], T]) -> T | None:
    """Return what `parse` makes of a tool's standard output; None where there is no such tool, or where it failed.

    A tool that fails, hangs, or prints what `parse` refuses (ValueError, which says what was expected and quotes the
    line) becomes a failure of the host. That the tool is absent is none by itself: its caller knows whether it had to
    be there.
    """
    name = " ".join(argv)
    result = run(argv, TIMEOUT)
    if result.rc == NOT_FOUND:
        return None
    if result.rc:
        host.fail(name, _last_line(result.stderr or result.stdout) or f"exit {result.rc}", "the tool's answer")
        return None
    try:
        return parse(result.stdout)
    except ValueError as error:
        host.fail(name, _last_line(str(error)), "a layout that is understood")
        return None


def unknown(line: str, expected: str) -> ValueError:
    """Return the error for a line that is not understood: it quotes the line."""
    return ValueError(f"{line.strip()[:120]!r}, expected {expected}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:240] if lines else ""
