"""Output: logs and progress on standard error, data on standard output.

Both may quote what a registry, a bundle or a file of someone else contains, so neither passes on what a terminal obeys.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from entrypoints.core.redact import redact_text
from entrypoints.core.text import printable as printable  # noqa: PLC0414 - for other modules, too

if TYPE_CHECKING:  # rich is slow to import, and most verbs do not need it
    from rich.console import Console
    from rich.progress import Progress


_COLOURS = {"error": "1;31", "warning": "1;33", "hint": "36"}
"""First word of a line → parameters of the escape that colours it on a terminal."""
_verbose: list[bool] = [False]


def on_terminal() -> bool:
    """Tell whether someone watches: standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb", "unknown"}


def set_verbose(*, verbose: bool) -> None:
    """Choose between lines for all that is done, with the whole log of the tools that drydock runs, and progress."""
    _verbose[0] = verbose


def quiet() -> bool:
    """Tell whether to show progress instead of lines."""
    return on_terminal() and not _verbose[0]


@functools.cache
def errors() -> Console:
    """Return a rich console that writes to standard error."""
    from rich.console import Console  # noqa: PLC0415 - see above

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


def log(text: str) -> None:
    """Write one line to standard error, printable and without secrets; an active progress display moves down."""
    sys.stderr.write(f"{_coloured(printable(redact_text(text)))}\n")
    sys.stderr.flush()


def detail(text: str) -> None:
    """Write a line to standard error if all that is done is asked for."""
    if _verbose[0]:
        log(text)


def _coloured(text: str) -> str:
    """Colour the words that begin a message, on a terminal and unless NO_COLOR is set (no-color.org)."""
    if os.environ.get("NO_COLOR") or not on_terminal():
        return text
    words = "|".join(_COLOURS)
    return re.sub(
        rf"^({words})(?=:)", lambda word: f"\033[{_COLOURS[word[1]]}m{word[1]}\033[0m", text, flags=re.MULTILINE
    )


def emit(text: str) -> None:
    """Write data to standard output, in printable form."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII locale cannot encode arrows
    sys.stdout.write(printable(text))
    sys.stdout.flush()


@contextlib.contextmanager
def step(name: str, total: int | None = None) -> Iterator[Step]:
    """Show a step while the block runs: its name, time and bytes, of `total` if given; then how long it took.

    It is drawn on a terminal only, and not with --verbose. A step within a step is a line of its own.
    """
    if not quiet():
        yield Unseen()
        return
    from drydock.core import display  # noqa: PLC0415 - imports rich

    with display.shown(errors(), name, total) as shown:
        yield shown


class Step(Protocol):
    """A step that is running."""

    def note(self, text: str) -> None:
        """Say what the step does now."""

    def advance(self, count: int) -> None:
        """Count bytes."""


class Unseen:
    """A step without a terminal."""

    def note(self, _text: str) -> None:
        """Show nothing."""

    def advance(self, _count: int) -> None:
        """Show nothing."""


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
        console=errors(),
        disable=not on_terminal(),
        transient=True,
    )
