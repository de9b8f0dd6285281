"""Variants → the rows of `matrix`, as plain data and as a text table. Reads the locks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from drydock.build.job import Job
from drydock.config.matrix import State, describe
from drydock.core.errors import DrydockError
from drydock.lock import lockfile as locks
from drydock.lock.proof import read_proof
from drydock.model.locked import Lock
from drydock.model.variant import Variant

COLUMNS = ("id", "aliases", "stack", "vllm", "python", "base", "platforms", "hermetic", "locked", "proof")


def rows(root: Path, variants: Iterable[Variant]) -> list[dict[str, Any]]:
    """Return the rows of `matrix --json`."""
    return [describe(variant, state(root, variant)) for variant in variants]


def state(root: Path, variant: Variant) -> State:
    """Return a variant's state: what is locked, its tier and its digest."""
    lock = current_lock(root, variant)
    if lock is None:
        return State(locked=False, unresolved=(), proof="none", date="", digest="")
    unresolved = tuple(sorted({name for pins in lock.platforms.values() for name in pins.unresolved}))
    if not (root / "images" / variant.id / "Dockerfile").is_file():
        return State(locked=not unresolved, unresolved=unresolved, proof="none", date="", digest="")
    shown = read_proof(root, variant.id)
    current = {
        Job(variant=variant, lock=lock, platform=platform, root=root).inputs_sha256: pins
        for platform, pins in lock.platforms.items()
    }
    proven = shown if shown and shown.inputs_sha256 in current else None
    images = [
        pins.image.digest for inputs, pins in current.items() if pins.image and pins.image.inputs_sha256 == inputs
    ]
    return State(
        locked=not unresolved,
        unresolved=unresolved,
        proof=proven.tier() if proven else "rendered",
        date=proven.date if proven else "",
        digest=images[0] if images else proven.digest if proven else "",
    )


def current_lock(root: Path, variant: Variant) -> Lock | None:
    """Return a variant's lock, or None if it is missing, broken or does not match the matrix."""
    path = locks.path_of(root, variant.id)
    if not path.is_file():
        return None
    try:
        lock = locks.read_lock(path)
        locks.check(variant, lock)
    except DrydockError:  # the column shows that it is not locked; `lock --check` shows why
        return None
    return lock


WIDEST = 10_000
"""More columns than any table needs, so that names are never cut off: a wrapped name can still be copied."""


def text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table, one line per row, as wide as needed."""
    table = Table(*COLUMNS, box=None, pad_edge=False, header_style="bold")
    for row in found:
        table.add_row(*(_cell(row[column]) for column in COLUMNS[:-2]), locked(row), row["proof"])
    console = Console(width=WIDEST, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def locked(row: Mapping[str, Any]) -> str:
    """Return the text of the column `locked`."""
    return f"all but {', '.join(row['unresolved'])}" if row["unresolved"] else _cell(row["locked"])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)
