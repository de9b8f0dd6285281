"""What one short run of a command needs of the interpreter."""

from __future__ import annotations

import gc

MANY = 100_000
"""Objects made between two looks for cycles. A command makes a million records that stay until it ends, and holds no
cycle worth finding: with Python's own 700, a fifth of its time goes into looking."""


def short_lived() -> None:
    """Tell the garbage collector that this process ends soon; what was imported is never looked at again."""
    gc.freeze()
    gc.set_threshold(MANY)
