"""Waiting for something to happen, up to a deadline that a busy machine meets."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE = 60.0
"""Seconds."""


def wait_until(condition: Callable[[], object], what: str, within: float = DEADLINE) -> None:
    """Return as soon as a condition holds. Raises AssertionError after `within` seconds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"waited {within:g} s for {what}"
        time.sleep(0.01)
