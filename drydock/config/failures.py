"""Reads the known failures of an accelerator. Only builds and pages need them, so the matrix does not have them."""

from __future__ import annotations

from functools import lru_cache

from drydock.config.layers import merged, read_layers
from drydock.config.validation import validate
from drydock.core.files import dumps
from drydock.core.project import Project
from drydock.model.checks import Failures
from drydock.model.record import dump


def read_failures(project: Project, accelerator: str = "") -> Failures:
    """Return the failures of any host and those of an accelerator, with their texts in other languages.

    Raises InputError.
    """
    return _read(project, _names(project, accelerator))


def failures_text(project: Project, accelerator: str) -> str:
    """Return the same as JSON, for an image. It is not made again while no file has changed: rows share it."""
    names = _names(project, accelerator)
    return _text(project, names, tuple(path.read_bytes() for name in names for path in project.each(name)))


@lru_cache(maxsize=32)
def _text(project: Project, names: tuple[str, ...], _contents: tuple[bytes, ...]) -> str:
    return dumps(dump(_read(project, names)))


def _read(project: Project, names: tuple[str, ...]) -> Failures:
    return validate(Failures, merged(read_layers(project, name) for name in names))


def _names(project: Project, accelerator: str) -> tuple[str, ...]:
    folders = ("templates", f"templates/{accelerator}") if accelerator else ("templates",)
    patterns = (f"{folder}/failures{end}" for folder in folders for end in (".yaml", ".??.yaml"))
    return tuple(project.name_of(path) for pattern in patterns for path in project.glob(pattern))
