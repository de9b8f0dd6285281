"""Files that only their vendor may hand out: an operator's folder → pinned files in the store → a build context. IO."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from drydock.errors import FetchError, InputError
from drydock.locked import LockedFile
from drydock.model import Supplied
from drydock.store import Store

CHUNK = 1 << 20


def take(item: Supplied, folder: Path, store: Store) -> tuple[LockedFile, ...]:
    """Take the files that a context asks for out of an operator's folder into the store; return their pins.

    Raises InputError naming every pattern that matches nothing.
    """
    if not folder.is_dir():
        raise InputError(f"--context {item.name}={folder}: no such folder", hint=item.how)
    found = {pattern: sorted(folder.glob(pattern)) for pattern in item.patterns}
    missing = [pattern for pattern, paths in found.items() if not paths]
    if missing:
        problems = (f"--context {item.name}={folder}: no file {pattern}" for pattern in missing)
        raise InputError(*problems, hint=item.how)
    paths = sorted({path for matches in found.values() for path in matches})
    return tuple(_keep(path, store) for path in paths)


def context(item: Supplied, pins: tuple[LockedFile, ...], store: Store) -> Path:
    """Return the folder of the pinned files. Raises FetchError naming those that the store lacks."""
    missing = [pin.filename for pin in pins if not store.has(pin.sha256, pin.size)]
    if missing:
        raise FetchError(
            *(f"{item.name}: {name} is pinned and not in the store" for name in missing),
            hint=f"--context {item.name}=FOLDER takes it from there; {item.how}",
        )
    return store.folder({pin.filename: pin.sha256 for pin in pins})


def _keep(path: Path, store: Store) -> LockedFile:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    store.add(_chunks(path), sha256, path.name)
    return LockedFile(filename=path.name, size=path.stat().st_size, sha256=sha256)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(CHUNK), b"")
