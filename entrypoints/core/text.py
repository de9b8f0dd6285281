"""Text of a model folder, a recorded host or a cache entry, in a form that a terminal can show.

Pure, except `emit_text`, `emit_printable`, `tell_user` and `print_message`.
"""

from __future__ import annotations

import _thread  # `threading` takes 3 ms to import
import re
import sys

from entrypoints.core.errors import HOST, EntrypointError

PATIENCE = 1.0
"""Seconds that a write to standard error may take until the next messages are dropped."""
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of an environment variable, which needs no quotes in a shell, a unit, YAML and a Dockerfile."""
REPORT_TITLE, REPORT_INDENT = "# drydock report", "    "
"""How what `report` writes begins, and each line of a section of it (verbs/report_verb.py)."""
LOG_SECTION, HOST_SECTION = "Log", "Host"
"""The sections that `explain` and `--root` read."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""Terminal escape sequences (ECMA-48): CSI, OSC, and short sequences."""
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
        character if character.isprintable() or character in _SPACES else _escape_character(character)
        for character in text
    )


def strip_escapes(text: str) -> str:
    """Return text without colours, window titles and other terminal escape sequences."""
    return _ESCAPE.sub("", text)


def emit_text(text: str) -> None:
    """Write data to standard output, in printable form. IO. Raises HOST."""
    emit_printable(printable(text))


def emit_printable(text: str) -> None:
    """Write text to standard output that is printable already, but for its own colours. IO. Raises HOST."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, AttributeError) as error:  # None if standard output was closed before the start
        sys.stdout = None  # or Python fails again at the end, and exits with 120
        raise EntrypointError(HOST, f"cannot write to standard output: {error}") from error


def tell_user(text: str) -> None:
    """Write lines to standard error, in printable form: they may quote a file of someone else. IO.

    Without a reader, as after `docker run … 2>&1 | head`, nothing is written: a server goes on without its log. If the
    reader does not read and the pipe is full, lines are dropped until it reads.
    """
    _log.write(printable(text).removesuffix("\n") + "\n")


def print_message(text: str) -> None:
    """Write a line of drydock's own to standard error. IO."""
    tell_user(f"drydock: {text}")


class _Log:
    """Standard error, written by a thread that may be stuck in a write for ever, while the others go on.

    A pipe cannot be made non-blocking here alone: vLLM, which has the same one, would get errors.
    """

    def __init__(self) -> None:
        self._free = _thread.allocate_lock()
        self._stuck = False
        self._dropped = 0

    def write(self, text: str) -> None:
        """Write text, or drop it if an earlier write is stuck."""
        if not self._free.acquire(timeout=0 if self._stuck else PATIENCE):
            self._dropped += 1
            return
        if self._dropped:
            text = f"drydock: WARN {format_count(self._dropped, 'message')} dropped here: no one read this log\n{text}"
            self._dropped = 0
        try:
            _thread.start_new_thread(self._write, (text,))
        except RuntimeError:  # the limit of processes
            self._write(text)
        self._stuck = not self._free.acquire(timeout=PATIENCE)
        if not self._stuck:
            self._free.release()

    def _write(self, text: str) -> None:
        stream, sys.stderr = sys.stderr, None  # so that Python does not wait for it either, for example at the end
        try:
            stream.write(text)
            stream.flush()
        except (OSError, AttributeError):  # None if it was closed before the start
            stream = None  # or Python fails again at the end, and exits with 120
        finally:
            sys.stderr = stream
            self._free.release()


_log = _Log()


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 device`, `2 devices`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_one_line(text: str) -> str:
    """Return text in printable form on one line, where a newline would begin what looks like another entry."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape_character(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def extract_section(text: str, name: str) -> str:
    """Return a section of a report without its indent; a text that is no report as it is."""
    if not text.startswith(f"{REPORT_TITLE}\n"):
        return text
    _, _, after = text.partition(f"\n## {name}\n")
    lines = []
    for line in after.splitlines():
        if line.startswith("## "):
            break
        lines.append(line.removeprefix(REPORT_INDENT))
    return "\n".join(lines).strip("\n") + "\n"
