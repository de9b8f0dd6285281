"""Files that only their vendor may distribute: from the operator's folder to the store and a build context. IO."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from drydock.config.validation import make_record
from drydock.core.errors import FetchError, InputError, suggest_nearest
from drydock.core.files import LFS_HINT, file_sha256, is_lfs_pointer, join_below
from drydock.inputs.store import Store
from drydock.inputs.wheel_contents import check_wheels, read_local_wheel
from drydock.model.locked import LockedFile
from drydock.model.variant import Supplied, Variant

CHUNK = 1 << 20
VARIABLE = "DRYDOCK_SUPPLIED"
"""Names the folders of a machine, such as a CI runner, in which vendors' files lie; with colons between them."""


def take_supplied(item: Supplied, folder: Path, store: Store) -> tuple[LockedFile, ...]:
    """Copy the files of a context from the operator's folder into the store; return their pins.

    Raises InputError that names every pattern without a match, or with more than one installer.
    """
    where = f"--context {item.name}={folder}"
    if not folder.is_dir():
        raise InputError(f"{where}: no such folder", hint=item.how)
    matches = {pattern: [path for path in folder.glob(pattern) if path.is_file()] for pattern in item.patterns}
    problems = [
        problem for pattern, paths in matches.items() for problem in _find_pattern_problems(item, pattern, paths)
    ]
    if problems:
        raise InputError(*(f"{where}: {problem}" for problem in problems), hint=item.how)
    files = sorted({path for paths in matches.values() for path in paths})
    return tuple(_add_supplied_file(path, store) for path in files)


def check_pins(pins: Iterable[LockedFile], store: Store) -> None:
    """Raise InputError for stored wheels whose metadata is not their file name's; warn of two with the same path."""
    wheels = (pin for pin in pins if pin.filename.endswith(".whl"))
    check_wheels([read_local_wheel(store.path(pin.sha256), pin.filename) for pin in wheels])


def match_folders(items: Iterable[Supplied], folders: Sequence[Path]) -> dict[str, Path]:
    """Return for each context the first of the operator's folders that has any of its files.

    Raises InputError for a folder that does not exist, or that has nothing that the variant takes.
    """
    items = tuple(items)
    if missing := [f"--supplied {folder}: no such folder" for folder in folders if not folder.is_dir()]:
        raise InputError(*missing)
    pairs = [(item, folder) for item in items for folder in folders if _has_any(item, folder)]
    if foreign := [folder for folder in folders if folder not in {folder for _, folder in pairs}]:
        patterns = ", ".join(pattern for item in items for pattern in item.patterns)
        expected = f"expected {patterns}" if patterns else "and the variant takes no supplied files"
        raise InputError(*(f"--supplied {folder}: no file of it is needed, {expected}" for folder in foreign))
    return {item.name: folder for item, folder in reversed(pairs)}


def match_machine_folders(items: Iterable[Supplied], env: Mapping[str, str]) -> dict[str, Path]:
    """Return for each context the first of this machine's folders that has any of its files.

    Raises InputError for a folder that does not exist.
    """
    folders = [Path(name) for name in env.get(VARIABLE, "").split(":") if name]
    if missing := [f"{VARIABLE}: {folder}: no such folder" for folder in folders if not folder.is_dir()]:
        raise InputError(*missing)
    return {item.name: folder for item in items for folder in reversed(folders) if _has_any(item, folder)}


def _has_any(item: Supplied, folder: Path) -> bool:
    return any(path.is_file() for pattern in item.patterns for path in folder.glob(pattern))


def _find_pattern_problems(item: Supplied, pattern: str, paths: Sequence[Path]) -> Iterator[str]:
    if not paths:
        yield f"no file matches {pattern}"
    if item.install == "run" and len(paths) > 1:
        names = ", ".join(sorted(path.name for path in paths))
        yield f"{len(paths)} files match {pattern}, expected one installer: {names}"


def refuse_foreign(variants: Iterable[Variant], folders: Mapping[str, Path]) -> None:
    """Raise InputError if the operator supplies files for a context that one of the variants does not have."""
    for variant in variants:
        context_names = [item.name for item in variant.supplied]
        for name in sorted(set(folders) - set(context_names)):
            hint = (
                suggest_nearest(name, context_names) if context_names else "to replace a context, use `build --context`"
            )
            raise InputError(f"--context {name}: {variant.id} takes no supplied files of that name", hint=hint)


def make_context_folder(
    item: Supplied, pins: tuple[LockedFile, ...], store: Store, env: Mapping[str, str] = os.environ
) -> Path:
    """Return a folder of the pinned files, which may also come from this machine's folders.

    Raises FetchError that names those missing from the store, or for a file that does not match its pin.
    """
    folder = match_machine_folders((item,), env).get(item.name)
    if folder and not all(store.has(pin.sha256, pin.size) for pin in pins):
        bring_pinned_files(item.name, pins, folder, store)
    missing = [pin.filename for pin in pins if not store.has(pin.sha256, pin.size)]
    if missing:
        raise FetchError(
            *(f"{item.name}: {name} is pinned but not in the store" for name in missing),
            hint=f"name the folder that contains it with `build --supplied FOLDER` or {VARIABLE}; {item.how}",
        )
    return store.folder({pin.filename: pin.sha256 for pin in pins})


def bring_pinned_files(name: str, pins: Sequence[LockedFile], folder: Path, store: Store) -> None:
    """Copy pinned files from the operator's folder into the store.

    Raises InputError that names missing files, FetchError for a file that does not match its pin.
    """
    missing = [pin.filename for pin in pins if not join_below(folder, pin.filename).is_file()]
    if missing:
        raise InputError(*(f"--context {name}={folder}: no file {filename}" for filename in missing))
    for pin in pins:
        store.add(_read_chunks(folder / pin.filename), pin.sha256, f"{folder / pin.filename}")


def _add_supplied_file(path: Path, store: Store) -> LockedFile:
    if is_lfs_pointer(path):
        raise InputError(f"{path}: found a pointer of Git LFS, expected the file", hint=LFS_HINT)
    sha256 = file_sha256(path)
    store.add(_read_chunks(path), sha256, path.name)
    return make_record(LockedFile, str(path), {"filename": path.name, "size": path.stat().st_size, "sha256": sha256})


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(CHUNK), b"")
