"""Replacements for named build contexts: a mirror, a folder, a fork's source tree, a test's stub. IO: hashing.

The Dockerfile does not change. The image does, so its digest is not compared with the committed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from drydock.core.errors import InputError, suggest_nearest
from drydock.core.files import file_sha256
from drydock.inputs import supplied
from drydock.inputs.store import default_store
from drydock.model.locked import LockedPlatform
from drydock.model.variant import Variant

SCHEMES = ("docker-image://", "oci-layout://", "https://", "target:")
"""Contexts that bake accepts other than folders."""


def parse_contexts(words: Iterable[str]) -> dict[str, str]:
    """Parse the NAME=VALUE arguments of --context. Raises InputError."""
    contexts: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise InputError(f"--context {word}: expected NAME=FOLDER or NAME=docker-image://REFERENCE")
        contexts[name] = value if value.startswith(SCHEMES) else str(Path(value).absolute())
    return contexts


def parse_context_folders(words: Iterable[str]) -> dict[str, Path]:
    """Parse the arguments of --context as folders. Raises InputError."""
    return {name: Path(value) for name, value in parse_contexts(words).items()}


def resolve_contexts(variant: Variant, pins: LockedPlatform, contexts: Mapping[str, str]) -> dict[str, str]:
    """Check the contexts that the user gave, and return those that replace one.

    A folder of supplied files that the lock pins replaces nothing: its files are checked and copied to the store.
    Raises InputError for an unknown context, a missing folder, or files that do not match their pins.
    """
    known_names = ("base", "wheels", "tools", "entrypoints", *_list_context_names(variant))
    for name, value in contexts.items():
        if name not in known_names:
            raise InputError(
                f"--context {name}: {variant.id} has no such context", hint=suggest_nearest(name, known_names)
            )
        if value.startswith("/") and not Path(value).is_dir():
            raise InputError(f"--context {name}={value}: no such folder")
    pinned = {item.name: item for item in variant.supplied if item.name in contexts and item.name in pins.supplied}
    for name, item in pinned.items():
        if supplied.take_supplied(item, Path(contexts[name]), default_store()) != pins.supplied[name]:
            raise InputError(
                f"{name}: the files in {contexts[name]} do not match the lock",
                hint=f"to pin these files: `./inv lock --target {variant.id} --context {name}={contexts[name]}`",
            )
    return {name: value for name, value in contexts.items() if name not in pinned}


def identify_context(value: str) -> str:
    """Return what identifies a replacement: the hash of a folder's content or of a layout's index, else its name."""
    layout = value.removeprefix("oci-layout://").partition("@")[0]
    index = Path(layout, "index.json")
    if layout != value and index.is_file():
        return f"{value} {file_sha256(index)}"
    if not value.startswith("/"):
        return value
    folder, hasher = Path(value), hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        hasher.update(f"{path.relative_to(folder)}\0{_describe_content(path)}\0".encode())
    return hasher.hexdigest()


def _describe_content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    return f"{path.stat().st_mode & 0o111:o} {file_sha256(path)}" if path.is_file() else "not a file"


def _list_context_names(variant: Variant) -> tuple[str, ...]:
    return (*(source.name for source in variant.sources), *(item.name for item in variant.supplied))
