"""Files that only their vendor may hand out: an operator's folder → pinned files in the store → a build context. IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from drydock.core.errors import FetchError, InputError, nearest
from drydock.core.files import file_sha256
from drydock.inputs.store import Store
from drydock.model.locked import LockedFile
from drydock.model.variant import Supplied, Variant

CHUNK = 1 << 20


def take(item: Supplied, folder: Path, store: Store) -> tuple[LockedFile, ...]:
    """Take the files that a context asks for out of an operator's folder into the store; return their pins.

    Raises InputError naming every pattern that matches nothing, or two installers of which one would be run.
    """
    where = f"--context {item.name}={folder}"
    if not folder.is_dir():
        raise InputError(f"{where}: no such folder", hint=item.how)
    found = {pattern: [path for path in folder.glob(pattern) if path.is_file()] for pattern in item.patterns}
    problems = [text for pattern, paths in found.items() for text in _wrong(item, pattern, paths)]
    if problems:
        raise InputError(*(f"{where}: {text}" for text in problems), hint=item.how)
    paths = sorted({path for matches in found.values() for path in matches})
    return tuple(_keep(path, store) for path in paths)


def _wrong(item: Supplied, pattern: str, paths: Sequence[Path]) -> Iterator[str]:
    """Yield what is wrong with the files of one pattern; the Dockerfile's shell reads it as words."""
    if not paths:
        yield f"no file {pattern}"
    if item.install == "run" and len(paths) > 1:
        names = ", ".join(sorted(path.name for path in paths))
        yield f"{len(paths)} files match {pattern}, expected one installer: {names}"


def refuse_foreign(variants: Iterable[Variant], brought: Mapping[str, Path]) -> None:
    """Raise InputError for files that are brought for a context which one of the variants does not take files for."""
    for variant in variants:
        known = [item.name for item in variant.supplied]
        for name in sorted(set(brought) - set(known)):
            hint = nearest(name, known) if known else "`build --context` puts something else in a context's place"
            raise InputError(f"--context {name}: {variant.id} takes no files of that name", hint=hint)


def context(item: Supplied, pins: tuple[LockedFile, ...], store: Store) -> Path:
    """Return the folder of the pinned files. Raises FetchError naming those that the store lacks."""
    missing = [pin.filename for pin in pins if not store.has(pin.sha256, pin.size)]
    if missing:
        raise FetchError(
            *(f"{item.name}: {name} is pinned and not in the store" for name in missing),
            hint=f"--context {item.name}=FOLDER takes it from there; {item.how}",
        )
    return store.folder({pin.filename: pin.sha256 for pin in pins})


def bring(name: str, pins: Sequence[LockedFile], folder: Path, store: Store) -> None:
    """Take pinned files out of an operator's folder into the store.

    Raises InputError naming those that are not there, FetchError for one that is another file.
    """
    missing = [pin.filename for pin in pins if not (folder / pin.filename).is_file()]
    if missing:
        raise InputError(*(f"--context {name}={folder}: no file {filename}" for filename in missing))
    for pin in pins:
        store.add(_chunks(folder / pin.filename), pin.sha256, f"{folder / pin.filename}")


def _keep(path: Path, store: Store) -> LockedFile:
    sha256 = file_sha256(path)
    store.add(_chunks(path), sha256, path.name)
    return LockedFile(filename=path.name, size=path.stat().st_size, sha256=sha256)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(CHUNK), b"")
