"""Records → JSON Schemas, committed in schemas/ for editors and for other tools. Pure, but for the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drydock.bundle.contents import Bundle
from drydock.checks import AnyHost
from drydock.errors import StaleError
from drydock.files import dumps, write_atomically
from drydock.locked import Lock
from drydock.mirrors import Mirrors
from drydock.model import Accelerator, Matrix, Profile
from drydock.record import Record

RECORDS: dict[str, type[Record]] = {
    "accelerator": Accelerator,
    "bundle": Bundle,
    "host": AnyHost,
    "lock": Lock,
    "matrix": Matrix,
    "mirrors": Mirrors,
    "profile": Profile,
}


def schemas() -> dict[str, str]:
    """Return the schema of each file that people or tools read, by its path below the repository's root."""
    return {f"schemas/{name}.schema.json": dumps(_schema(record)) for name, record in RECORDS.items()}


def write(root: Path) -> list[Path]:
    """Write the schemas; return those that changed."""
    return [root / name for name, text in schemas().items() if write_atomically(root / name, text)]


def check(root: Path) -> None:
    """Compare the committed schemas with the records. Raises StaleError."""
    stale = [name for name, text in schemas().items() if not _same(root / name, text)]
    if stale:
        raise StaleError(*(f"{name}: does not match drydock/model.py" for name in stale), hint="run `invoke schema`")


def _schema(record: type[Record]) -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **record.model_json_schema(mode="validation")}


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text
