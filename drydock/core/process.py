"""Settings of the process of a short-lived command, and where it runs."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping

GC_THRESHOLD = 100_000
"""Allocations between two runs of the garbage collector. A command makes a million records, keeps them until it ends
and leaves no cycles worth collecting: with Python's default of 700, the collector takes a fifth of the time."""
NOT_FOR_OTHERS = 0o002
"""Bits that no file or folder gets, whatever the umask. git and buildx, which drydock starts, inherit that."""


def short_lived() -> None:
    """Make the garbage collector run rarely, and never scan what was imported; make no file that others can write."""
    os.umask(os.umask(0) | NOT_FOR_OTHERS)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def in_ci(env: Mapping[str, str]) -> bool:
    """Tell whether a CI service runs the command: each of them sets CI=true."""
    return env.get("CI", "").lower() in ("true", "1")
