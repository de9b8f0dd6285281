"""Runs a vendor's tool and parses its output. Errors become failures of the host. IO only through `run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from entrypoints.core.records import TOOL_OUTPUT
from entrypoints.core.text import strip_escapes
from entrypoints.host.commands import NOT_FOUND
from entrypoints.host.host import Host, Result, Run

TIMEOUT = 20.0
"""Time limit of a tool in seconds: npu-smi and hl-smi take 1 to 5 on a machine with eight cards."""
_SHORT = 240
"""Longest error text, in characters, that is kept whole. nvidia-smi gives the cause in the first of two sentences."""

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


def run_tool(host: Host, run: Run, argv: tuple[str, ...], parse: Callable[[str], T]) -> T | None:
    """Run a tool and return its standard output parsed by `parse`; None if the tool is absent or the output invalid.

    A tool that fails or times out becomes a failure of the host, and so does output that `parse` refuses (ValueError
    that quotes the line and says what was expected). Output of a failed tool is still parsed, because a tool that
    lost one of eight cards lists the others. An absent tool is not a failure here: the caller knows whether it is
    required.
    """
    name = " ".join(argv)
    result = run(argv, TIMEOUT)
    if result.rc == NOT_FOUND:
        return None
    if result.rc:
        _add_tool_failure(host, argv, _error_text(result) or f"exit {result.rc}")
    try:
        return parse(strip_terminal_escapes(result.stdout))
    except ValueError as error:
        if not result.rc:
            host.fail(name, _quote_last_line(str(error)), "a supported output format")
        return None


def _add_tool_failure(host: Host, argv: tuple[str, ...], message: str) -> None:
    """Add a failure of a tool, unless another call of it has failed with the same message."""
    if not any(failure.where.split()[0] == argv[0] and failure.found == message for failure in host.failures):
        host.fail(" ".join(argv), message, TOOL_OUTPUT)


def strip_terminal_escapes(text: str) -> str:
    """Return a text without terminal escape sequences: some tools print colours and underlines into pipes too."""
    return strip_escapes(text.removeprefix("\ufeff")).replace("\r\n", "\n")


def parse_error(line: str, expected: str) -> ValueError:
    """Return the error for a line that cannot be parsed. It quotes the line."""
    return ValueError(f"{line.strip()[:120]!r}, expected {expected}")


def _error_text(result: Result) -> str:
    """Return why a tool failed: its whole error output if that is short, else the last line."""
    text = strip_terminal_escapes(result.stderr if result.stderr.strip() else result.stdout)
    message = " ".join(text.split())
    return message if len(message) <= _SHORT and message.isprintable() else _quote_last_line(text)


def _quote_last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:240] if lines else ""
