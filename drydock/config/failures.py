"""Reads the known failures of an accelerator. Only builds and pages need them, so the matrix does not have them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from drydock.config.layers import merged, read_layers
from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import validate
from drydock.core.files import dumps
from drydock.core.project import Project
from drydock.model.checks import Failures
from drydock.model.record import dump


def read_failures(project: Project, accelerator: str = "") -> Failures:
    """Return the failures of any host and those of an accelerator, with their texts in other languages.

    Raises InputError.
    """
    own = _files(project, f"templates/{accelerator}") if accelerator else _NO_FILES
    return _read(project, _files(project, "templates"), own)


def failures_text(project: Project, accelerator: str) -> str:
    """Return the same as JSON, for an image. It is not made again while no file has changed: rows share it."""
    return _text(project, _files(project, "templates"), _files(project, f"templates/{accelerator}"))


class _Files(NamedTuple):
    """Files of one folder. Their contents tell whether what was read before still holds."""

    names: tuple[str, ...]
    contents: tuple[bytes, ...]


_NO_FILES = _Files((), ())


def _files(project: Project, folder: str) -> _Files:
    found = [path for end in (".yaml", ".??.yaml") for path in project.glob(f"{folder}/failures{end}")]
    names = tuple(project.name_of(path) for path in found)
    return _Files(names, tuple(path.read_bytes() for name in names for path in project.each(name)))


@lru_cache(maxsize=32)
def _text(project: Project, common: _Files, own: _Files) -> str:
    return dumps(dump(_read(project, common, own)))


def _read(project: Project, common: _Files, own: _Files) -> Failures:
    shared = [_document(project, common)] if common.names else []
    return validate(Failures, merged([*shared, *(read_layers(project, name) for name in own.names)]))


@lru_cache(maxsize=2)
def _document(project: Project, files: _Files) -> YamlDocument:
    """Read the files that every accelerator shares."""
    return merged(read_layers(project, name) for name in files.names)
