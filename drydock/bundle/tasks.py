"""Implement the verbs `bundle` and `bundle.load`, and describe their options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drydock.core.errors import InputError
from drydock.core.files import dumps
from drydock.core.project import Project
from drydock.model.record import dump

if TYPE_CHECKING:
    from drydock.bundle.load import LoadOptions

CREATE = {
    "target": "variant id, alias or accelerator; repeatable",
    "output": "file to write",
    "model": "folder of a model to include, such as one of `model pull`; repeatable",
    "sign": "sign with this cosign private key: a file, env://NAME, or a key service URI",
}
LOAD = {
    "engine": "also load the images into the engine",
    "digest": "expected digest of the bundle, as `bundle` printed it: sha256:…; this or --key is required",
    "models": "folder to write the bundle's models to",
    "key": "public key whose owner must have signed the bundle; this or --digest is required",
    "context": "NAME=FOLDER: files that only their vendor may distribute, found by hash; repeatable",
}


def create(
    project: Project,
    targets: Sequence[str],
    output: Path,
    *,
    key: str = "",
    models: Sequence[str] = (),
    json: bool = False,
) -> str:
    """Create a bundle and return the report. Raises InputError without a target and without a model."""
    if not targets and not models:
        raise InputError("no --target", hint="./inv bundle --target cpu --output FILE; --target is repeatable")
    from drydock.bundle import create as creating

    created = creating.create(project, targets, output, key=key, models=[Path(model) for model in models])
    return dumps(dump(created)) if json else creating.report(created)


def load(project: Project, file: Path, options: LoadOptions, *, json: bool = False) -> str:
    """Load a bundle and return the report."""
    from drydock.bundle import load as loading

    loaded = loading.load(project, file, options)
    return dumps(dump(loaded)) if json else loading.report(loaded)
