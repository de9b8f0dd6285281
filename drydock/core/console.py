"""Output: logs and progress on standard error, data on standard output.

Both may quote what a registry, a bundle or a file of someone else contains, so neither passes on what a terminal obeys.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from drydock import INSTALLED
from drydock.core.amounts import byte_count, format_duration
from drydock.core.errors import FULL, DiskFullError, DrydockError, InputError
from drydock.core.paths import PROGRAM, ROOT
from drydock.core.user_language import translate_lines
from entrypoints.core.redact import redact_text
from entrypoints.core.text import format_one_line
from entrypoints.core.text import printable as printable  # noqa: PLC0414 - for other modules, too

if TYPE_CHECKING:  # rich is slow to import, and most verbs do not need it
    from rich.console import Console
    from rich.progress import Progress


_COLOURS = {"error": "1;31", "warning": "1;33", "hint": "36", "错误": "1;31", "警告": "1;33", "提示": "36"}
"""First word of a line → parameters of the escape that colours it on a terminal."""
_verbose: list[bool] = [False]
_quiet: list[bool] = [False]
_copies: list[str] = []
"""Folder of the copy of a project in which a dry run writes: what it wrote is said at its end."""
_SAID_QUIETLY = ("error: ", "warning: ", "hint: ", "interrupted; ")
"""How lines begin that --quiet leaves."""
_written = [0.0]
"""When the last line was written, by time.monotonic()."""
BROKEN_PIPE = 141
"""Exit code when the reader of standard output has gone: 128 + SIGPIPE, as in shells."""
BEAT = 15.0
"""Seconds without a line after which a running step says that it still runs."""


def on_terminal() -> bool:
    """Tell whether someone watches: standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"}


def set_verbose(*, verbose: bool, quiet: bool = False) -> None:
    """Choose between lines for all that is done, with the whole log of the tools that drydock runs, and progress.

    `quiet`: neither of both; only warnings and errors.
    """
    _verbose[0], _quiet[0] = verbose, quiet


@contextlib.contextmanager
def name_copy(folder: str) -> Iterator[None]:
    """Name files of a folder, which is a copy of the project, as those of the project; leave out what was written."""
    _copies.append(folder)
    try:
        yield
    finally:
        _copies.remove(folder)


def is_verbose() -> bool:
    """Tell whether --verbose was given."""
    return _verbose[0]


def shows_progress() -> bool:
    """Tell whether to show progress instead of lines."""
    return on_terminal() and not (_verbose[0] or _quiet[0])


@functools.cache
def open_error_console() -> Console:
    """Return a rich console that writes to standard error."""
    from rich.console import Console  # noqa: PLC0415 - see above

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


def log(text: str) -> None:
    """Write one line to standard error, printable and without secrets; an active progress display moves down.

    With --quiet only a warning or an error is written.
    """
    if _quiet[0] and not text.startswith(_SAID_QUIETLY):
        return
    for copy in _copies:
        text = re.sub(r"^(wrote .*|nothing to .*)\n?", "", text.replace(f"{copy}/", ""), flags=re.MULTILINE)
        if not text:
            return
    _written[0] = time.monotonic()
    with contextlib.suppress(OSError):  # a full disk behind 2>FILE ends no build
        translated = name_program(translate_lines(spell_commands(text)))
        sys.stderr.write(f"{_colour_prefixes(printable(redact_text(translated)))}\n")
        sys.stderr.flush()


def spell_commands(text: str) -> str:
    """Return a text for people with commands as one types them: texts say ./inv, an installed drydock is `drydock`."""
    return re.sub(r"\./inv(?=[ `.,;:]|$)", PROGRAM, text, flags=re.MULTILINE)


def name_program(text: str) -> str:
    """Return a text with commands that work in this folder: outside of the checkout inv has another path than ./inv."""
    if INSTALLED or "./inv" not in text:
        return spell_commands(text)
    with contextlib.suppress(OSError):  # the current folder was deleted
        if not Path.cwd().samefile(ROOT):
            return re.sub(r"(?<![A-Za-z0-9_/.-])\./inv(?![\w-])", lambda _: shlex.quote(f"{ROOT}/inv"), text)
    return text


def log_detail(text: str) -> None:
    """Write a line to standard error with --verbose."""
    if _verbose[0]:
        log(text)


def _colour_prefixes(text: str) -> str:
    """Colour the words that begin a message, on a terminal and unless NO_COLOR is set (no-color.org)."""
    if os.environ.get("NO_COLOR") or not on_terminal():
        return text
    words = "|".join(_COLOURS)
    return re.sub(
        rf"^({words})(?=[:：])", lambda word: f"\033[{_COLOURS[word[1]]}m{word[1]}\033[0m", text, flags=re.MULTILINE
    )


def write_output(text: str) -> None:
    """Write data to standard output, in printable form.

    Exits silently if its reader has gone, as in `| head`; raises DrydockError if it cannot be written.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII locale cannot encode arrows
    try:
        sys.stdout.write(printable(text))
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        if isinstance(error, BrokenPipeError):
            sys.exit(BROKEN_PIPE)
        raise _explain_output_error(error) from error


def _discard_output() -> None:
    """Send what is left to write nowhere: Python writes it again when it ends, and would print a second error.

    Source: the Python documentation of the module signal, "Note on SIGPIPE".
    """
    with contextlib.suppress(OSError, ValueError):  # not a file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain_output_error(error: OSError) -> DrydockError:
    """Return the error of standard output that cannot be written: a full disk, or a closed one (`>&-`)."""
    kind = DiskFullError if error.errno in FULL else InputError
    return kind(f"standard output: {error.strerror}", hint="redirect it to a file on a disk with free space, or a pipe")


def as_lines(lines: Iterable[str]) -> str:
    """Return lines as text: a newline or an escape in what a registry or a file says begins no line of its own."""
    return "".join(f"{format_one_line(line)}\n" for line in lines)


@contextlib.contextmanager
def show_step(name: str, total: int | None = None) -> Iterator[Step]:
    """Show a step while the block runs: its name, time and bytes, of `total` if given; then how long it took.

    It is drawn on a terminal, but not with --verbose. Else it writes a line at its end, and one each BEAT seconds in
    which nothing else is written. A step within a step is a line of its own.
    """
    if not shows_progress():
        with _written_as_lines(name) as lines:
            yield lines
        return
    from drydock.core import display  # noqa: PLC0415 - imports rich

    with display.draw_step(open_error_console(), name, total) as drawn_step:
        yield drawn_step


class Step(Protocol):
    """A step that is running."""

    def note(self, text: str) -> None:
        """Say what the step does now."""

    def advance(self, count: int) -> None:
        """Count bytes."""


class Lines:
    """A step that is written as lines, not drawn."""

    def __init__(self, name: str) -> None:
        self._name, self._begin, self._bytes, self._now = name, time.monotonic(), 0, ""
        self.ended = threading.Event()

    def note(self, text: str) -> None:
        """Say what the step does now; it is in the next line."""
        self._now = f": {format_one_line(text)}"

    def advance(self, count: int) -> None:
        """Count bytes."""
        self._bytes += count

    def beat(self) -> None:
        """Write a line each BEAT seconds in which nothing else was written, until the step ends."""
        wait = BEAT
        while not self.ended.wait(wait):
            silent = time.monotonic() - max(_written[0], self._begin)
            if silent >= BEAT:
                log(f"{self} so far{self._now}")
            wait = BEAT - min(silent, BEAT) or BEAT

    def __str__(self) -> str:
        return f"{self._name}: {format_duration(time.monotonic() - self._begin)}{byte_count(self._bytes, None)}"


@contextlib.contextmanager
def _written_as_lines(name: str) -> Iterator[Lines]:
    lines = Lines(name)
    threading.Thread(target=lines.beat, daemon=True).start()
    try:
        yield lines
    finally:
        lines.ended.set()
    log(str(lines))


def byte_progress() -> Progress:
    """Return a progress display that counts bytes; it is drawn on a terminal only."""
    from rich.progress import (  # noqa: PLC0415 - see above
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=open_error_console(),
        disable=not on_terminal(),
        transient=True,
    )
