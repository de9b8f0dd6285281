"""`bundle` and `bundle.load`, as text, and what their options say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import drydock
from drydock.errors import InputError
from drydock.files import dumps
from drydock.record import dump

if TYPE_CHECKING:
    import drydock.bundle.create
    import drydock.bundle.load

CREATE = {
    "target": "variant id, alias or accelerator; repeatable",
    "output": "the file",
    "sign": "cosign's private key: a file, env://NAME, or a key service's URI",
}
LOAD = {
    "engine": "load its images into the engine, too",
    "digest": "what the bundle's digest must be: sha256:…",
    "key": "public key whose owner must have signed it",
    "context": "NAME=FOLDER: files that only their vendor may hand out, by their hashes; repeatable",
}


def create(targets: Sequence[str], output: Path, *, key: str = "", json: bool = False) -> str:
    """Return what was bundled. Raises InputError without a target."""
    if not targets:
        raise InputError("no --target", hint="invoke bundle --target cpu --output FILE; --target is repeatable")
    created = drydock.bundle.create.create(targets, output, key=key)
    return dumps(dump(created)) if json else drydock.bundle.create.report(created)


def load(file: Path, wish: drydock.bundle.load.Wish, *, json: bool = False) -> str:
    """Return what was loaded."""
    loaded = drydock.bundle.load.load(file, wish)
    return dumps(dump(loaded)) if json else drydock.bundle.load.report(loaded)
