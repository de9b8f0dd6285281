"""What people see: logs and progress on standard error, data on standard output."""

from __future__ import annotations

import functools
import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported by what shows something: most verbs say nothing
    from rich.console import Console
    from rich.progress import Progress


@functools.cache
def errors() -> Console:
    """Return standard error as rich writes to it."""
    from rich.console import Console  # noqa: PLC0415 - see above

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


def log(text: str) -> None:
    """Say one line to the person at the terminal; a progress display that is up makes room for it."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def emit(text: str) -> None:
    """Write data to standard output, unchanged."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII locale has no arrows
    sys.stdout.write(text)
    sys.stdout.flush()


def byte_progress() -> Progress:
    """Return a progress display in bytes; drawn on a terminal only."""
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
        disable=not errors().is_terminal,
        transient=True,
    )
