"""From which bundle a kept layout was loaded, and whether its owner vouched for it. IO.

The record is kept in the cache folder, which others may write to. So it carries a seal made with a key of this machine,
which is kept elsewhere: a record without a valid seal does not vouch for anything.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from drydock.core.errors import StaleError
from drydock.core.files import compact, dumps, make_folder, write_atomically
from drydock.core.paths import state_home
from drydock.model.record import Digest, Record, Sha256, dump
from drydock.oci import layout as oci

LOADED = "loaded.json"
"""File next to a kept layout that this machine did not build."""


class LoadedFrom(Record):
    """Content of LOADED."""

    bundle: Digest
    vouched: bool
    """Whether `--key` or `--digest` named the bundle. Otherwise anyone may have made it."""
    documents: Mapping[str, Sha256] = {}
    """The documents that the bundle brought, by file name."""
    seal: str = ""


def write(layout: Path, bundle: str, documents: Mapping[str, bytes], *, vouched: bool) -> None:
    """Write from which bundle a layout was loaded. Raises DiskFullError."""
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in documents.items()}
    record = LoadedFrom(bundle=bundle, vouched=vouched, documents=hashes)
    sealed = record.model_copy(update={"seal": _seal(record, layout) if vouched else ""})
    write_atomically(layout / LOADED, dumps(dump(sealed)))


def read_loaded(layout: Path) -> LoadedFrom | None:
    """Return from which bundle a kept layout was loaded; None if this machine built it. Raises StaleError."""
    path = layout / LOADED
    try:
        found = LoadedFrom.model_validate_json(path.read_bytes()) if path.is_file() else None
    except ValueError as error:
        raise StaleError(f"{path}: invalid: {error}", hint=f"remove {layout}, then build or load again") from error
    if found is None or not found.vouched:
        return found
    return found.model_copy(update={"vouched": hmac.compare_digest(found.seal, _seal(found, layout))})


def _seal(record: LoadedFrom, layout: Path) -> str:
    """Return the seal of a record about the image that a layout holds."""
    content = {"record": dump(record.model_copy(update={"seal": ""})), "image": oci.read_digest(layout)}
    return hmac.new(_own_key(), compact(content).encode(), hashlib.sha256).hexdigest()


def _own_key(env: Mapping[str, str] = os.environ) -> bytes:
    """Return this machine's key; make it first if there is none. Only its owner can read it."""
    path = state_home(env) / "key"
    make_folder(path.parent)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(32))
    return path.read_bytes()
