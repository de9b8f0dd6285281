"""Reads the known failures of an accelerator. Only builds and pages need them, so the matrix does not have them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from drydock.config.layers import merged, read_layers
from drydock.config.matrix import HOST, read_retired
from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import validate
from drydock.core.files import dumps
from drydock.core.project import Project
from drydock.model.checks import Failures, FindingElsewhere, Retired
from drydock.model.record import dump
from drydock.model.topology_findings import FINDINGS


def read_failures(project: Project, accelerator: str = "") -> Failures:
    """Return the failures of any host and those of an accelerator, with their texts in other languages.

    Raises InputError.
    """
    own = _files(project, f"templates/{accelerator}") if accelerator else _NO_FILES
    return _read(project, _files(project, "templates"), own)


def failures_text(project: Project, accelerator: str) -> str:
    """Return the same as JSON, for an image. It is not made again while no file has changed: rows share it."""
    host = tuple(path.read_bytes() for path in project.each(HOST))
    return _text(project, _files(project, "templates"), _files(project, f"templates/{accelerator}"), host)


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
def _text(project: Project, common: _Files, own: _Files, host: tuple[bytes, ...]) -> str:
    elsewhere = _read_findings_elsewhere(project) if host else {}
    findings = {number: dump(finding) for number, finding in elsewhere.items()}
    return dumps({**dump(_read(project, common, own)), "findings": findings})


def _read_findings_elsewhere(project: Project) -> dict[str, FindingElsewhere]:
    """Return what `explain` says about ids that no image's own checks have: those of topologies, and retired ones."""
    topologies = {
        number: FindingElsewhere(text=known.text.replace("{}", "…"), remediation=known.remediation, source=known.source)
        for number, known in FINDINGS.items()
    }
    retired: dict[str, list[Retired]] = {}
    for entry in read_retired(project):
        retired.setdefault(entry.id, []).append(entry)
    return topologies | {number: _describe_retired(entries) for number, entries in retired.items()}


def _describe_retired(entries: list[Retired]) -> FindingElsewhere:
    meanings = "; or ".join(entry.meaning for entry in entries)
    successors = ", ".join(dict.fromkeys(entry.replaced_by for entry in entries if entry.replaced_by))
    remediation = (
        f"see {successors}, which has this meaning now" if successors else "nothing: this version has no such check"
    )
    return FindingElsewhere(text=f"an older drydock said: {meanings}", remediation=remediation, source=HOST)


def _read(project: Project, common: _Files, own: _Files) -> Failures:
    shared = [_document(project, common)] if common.names else []
    return validate(Failures, merged([*shared, *(read_layers(project, name) for name in own.names)]))


@lru_cache(maxsize=2)
def _document(project: Project, files: _Files) -> YamlDocument:
    """Read the files that every accelerator shares."""
    return merged(read_layers(project, name) for name in files.names)
