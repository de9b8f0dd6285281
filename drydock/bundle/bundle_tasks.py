"""Implement the verbs `bundle create` and `bundle load`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drydock.core.errors import InputError
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.model.record import dump_record

if TYPE_CHECKING:
    from drydock.bundle.load import LoadOptions


def create_and_report(
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
        raise InputError("no --target", hint="./inv bundle create --target cpu --output FILE; --target is repeatable")
    from drydock.bundle import create

    created = create.create_bundle(project, targets, output, key=key, models=[Path(model) for model in models])
    return format_json(dump_record(created)) if json else create.format_created_bundle(created)


def load_and_report(project: Project, file: Path, options: LoadOptions, *, json: bool = False) -> str:
    """Load a bundle and return the report."""
    from drydock.bundle import load

    loaded = load.load_bundle(project, file, options)
    return format_json(dump_record(loaded)) if json else load.format_loaded_bundle(loaded)
