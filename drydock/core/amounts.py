"""Times and bytes as text, as people read them."""

from __future__ import annotations

WORTH_COUNTING = 1_000_000
"""Bytes below which a step of unknown size shows none."""


def format_duration(seconds: float) -> str:
    """Return a time as text: 5.2 s, 2 min 05 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


def byte_count(size: int, total: int | None) -> str:
    """Return bytes as text, of a total if that is known; nothing for few bytes of an unknown total."""
    if not total and size < WORTH_COUNTING:
        return ""
    from rich.filesize import decimal  # noqa: PLC0415 - rich is slow to import

    return f"  {decimal(size)}" + (f" of {decimal(total)}" if total else "")
