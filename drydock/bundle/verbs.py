"""`bundle` and `bundle.load`, as text, and what their options say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drydock.core.errors import InputError
from drydock.core.files import dumps
from drydock.model.record import dump

if TYPE_CHECKING:
    from drydock.bundle.load import LoadOptions

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
    from drydock.bundle import create as creating

    created = creating.create(targets, output, key=key)
    return dumps(dump(created)) if json else creating.report(created)


def load(file: Path, options: LoadOptions, *, json: bool = False) -> str:
    """Return what was loaded."""
    from drydock.bundle import load as loading

    loaded = loading.load(file, options)
    return dumps(dump(loaded)) if json else loading.report(loaded)
