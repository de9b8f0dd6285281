"""Variants → what `matrix` shows: rows of plain data, and those rows as a table. Reads the locks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from drydock import build
from drydock import lock as locks
from drydock.errors import DrydockError
from drydock.locked import Lock
from drydock.matrix import describe
from drydock.model import Variant
from drydock.proof import read_proof

COLUMNS = ("id", "aliases", "stack", "vllm", "python", "base", "platforms", "hermetic", "locked", "proof")


def rows(root: Path, variants: Iterable[Variant]) -> list[dict[str, Any]]:
    """Return the rows of `matrix --json`."""
    found = [(variant, current_lock(root, variant)) for variant in variants]
    return [describe(variant, locked=lock is not None, proof=proof(root, variant, lock)) for variant, lock in found]


def current_lock(root: Path, variant: Variant) -> Lock | None:
    """Return a variant's lock if there is one that fits the matrix."""
    path = locks.path_of(root, variant.id)
    if not path.is_file():
        return None
    try:
        lock = locks.read_lock(path)
        locks.check(variant, lock)
    except DrydockError:  # absent, stale or broken is what the column says; `lock --check` says why
        return None
    return lock


def proof(root: Path, variant: Variant, lock: Lock | None) -> str:
    """Return the strongest tier that tests have shown of just these inputs; what they showed of others is no proof."""
    if lock is None or not (root / "images" / variant.id / "Dockerfile").is_file():
        return "none"
    shown = read_proof(root, variant.id)
    jobs = [build.Job(variant=variant, lock=lock, platform=platform, root=root) for platform in lock.platforms]
    current = shown is not None and shown.inputs_sha256 in {build.inputs_sha256(job) for job in jobs}
    return shown.tier() if shown and current else "rendered"


def text(found: Sequence[Mapping[str, Any]], width: int = 200) -> str:
    """Return rows as a table, no wider than it must be."""
    table = Table(*COLUMNS, box=None, pad_edge=False, header_style="bold")
    for row in found:
        table.add_row(*(_cell(row[column]) for column in COLUMNS))
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)
