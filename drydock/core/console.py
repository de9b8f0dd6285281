"""Output: logs and progress on standard error, data on standard output.

Both may quote what a registry, a bundle or a file of someone else contains, so neither passes on what a terminal obeys.
"""

from __future__ import annotations

import functools
import io
import sys
from typing import TYPE_CHECKING

from entrypoints.core.redact import redact_text
from entrypoints.core.text import printable

if TYPE_CHECKING:  # rich is slow to import, and most verbs do not need it
    from rich.console import Console
    from rich.progress import Progress


@functools.cache
def errors() -> Console:
    """Return a rich console that writes to standard error."""
    from rich.console import Console  # noqa: PLC0415 - see above

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


def log(text: str) -> None:
    """Write one line to standard error, printable and without secrets; an active progress display moves down."""
    sys.stderr.write(f"{printable(redact_text(text))}\n")
    sys.stderr.flush()


def emit(text: str) -> None:
    """Write data to standard output, in printable form."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII locale cannot encode arrows
    sys.stdout.write(printable(text))
    sys.stdout.flush()


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
        disable=not errors().is_terminal,
        transient=True,
    )
