"""What stands in for a named build context: a mirror, an air gap's folder, a fork's tree, a test's stub. IO: hashing.

The Dockerfile stays byte for byte the same; the image is another one, and its digest is compared with no committed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from drydock.core.errors import InputError, nearest
from drydock.core.files import file_sha256
from drydock.inputs import supplied
from drydock.inputs.store import default_store
from drydock.model.locked import LockedPlatform
from drydock.model.variant import Variant

SCHEMES = ("docker-image://", "oci-layout://", "https://", "target:")
"""What bake takes beside a folder."""


def parse(words: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE words, as --context takes them. Raises InputError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise InputError(f"--context {word}: expected NAME=FOLDER or NAME=docker-image://REFERENCE")
        found[name] = value if value.startswith(SCHEMES) else str(Path(value).absolute())
    return found


def resolve(variant: Variant, pins: LockedPlatform, given: Mapping[str, str]) -> dict[str, str]:
    """Check what was given, and return what really stands in for something.

    A folder of supplied files that the lock pins is no stand-in: its files go to the store, if they are the pinned
    ones. Raises InputError for a context that the variant lacks, a folder that is not there, and other files.
    """
    known = ("base", "wheels", "tools", "entrypoints", *_names(variant))
    for name, value in given.items():
        if name not in known:
            raise InputError(f"--context {name}: {variant.id} has no such context", hint=nearest(name, known))
        if value.startswith("/") and not Path(value).is_dir():
            raise InputError(f"--context {name}={value}: no such folder")
    brought = {item.name: item for item in variant.supplied if item.name in given and item.name in pins.supplied}
    for name, item in brought.items():
        if supplied.take(item, Path(given[name]), default_store()) != pins.supplied[name]:
            raise InputError(
                f"--context {name}={given[name]}: its files are not those that the lock pins",
                hint=f"`invoke lock --target {variant.id} --context {name}={given[name]}` pins them instead",
            )
    return {name: value for name, value in given.items() if name not in brought}


def identity(value: str) -> str:
    """Return what tells one stand-in from another: a folder's content, a layout's index, else its name."""
    layout = value.removeprefix("oci-layout://").partition("@")[0]
    index = Path(layout, "index.json")
    if layout != value and index.is_file():
        return f"{value} {file_sha256(index)}"
    if not value.startswith("/"):
        return value
    folder, found = Path(value), hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(f"{path.relative_to(folder)}\0{_content(path)}\0".encode())
    return found.hexdigest()


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    return f"{path.stat().st_mode & 0o111:o} {file_sha256(path)}" if path.is_file() else "not a file"


def _names(variant: Variant) -> tuple[str, ...]:
    return (*(source.name for source in variant.sources), *(item.name for item in variant.supplied))
