"""What people see: logs and progress on standard error, data on standard output."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

ERRORS = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


def log(text: str) -> None:
    """Say one line to the person at the terminal."""
    ERRORS.print(text)


def emit(text: str) -> None:
    """Write data to standard output, unchanged."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII locale has no arrows
    sys.stdout.write(text)
    sys.stdout.flush()


def byte_progress() -> Progress:
    """Return a progress display in bytes; drawn on a terminal only."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=ERRORS,
        disable=not ERRORS.is_terminal,
        transient=True,
    )
