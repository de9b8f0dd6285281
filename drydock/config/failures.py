"""Reads the known failures of an accelerator. Only builds and pages need them, so the matrix does not have them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from drydock.config.accelerator_files import HOST, read_retired
from drydock.config.project_layers import merge_layers, read_layers
from drydock.config.strict_yaml import YamlDocument
from drydock.config.topology_finding_file import read_topology_findings
from drydock.config.validation import validate_document
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.model.checks import Failure, Failures, FindingElsewhere, Retired
from drydock.model.record import dump_record


def read_failures(project: Project, accelerator: str = "") -> Failures:
    """Return the failures of any host and those of an accelerator, with their texts in other languages.

    Raises InputError.
    """
    accelerator_files = _read_failure_files(project, f"templates/{accelerator}") if accelerator else _NO_FILES
    return _merge_failures(project, _read_failure_files(project, "templates"), accelerator_files)


def failures_text(project: Project, accelerator: str) -> str:
    """Return the same as JSON, for an image, with those of the other accelerators apart.

    It is not made again while no file has changed: rows share it.
    """
    host = tuple(path.read_bytes() for path in project.list_layer_files(HOST))
    folders = sorted({path.parent.name for path in project.glob("templates/*/failures.yaml")})
    every_file = tuple((folder, _read_failure_files(project, f"templates/{folder}")) for folder in folders)
    return _make_failures_text(project, accelerator, _read_failure_files(project, "templates"), every_file, host)


class _Files(NamedTuple):
    """Files of one folder. Their contents tell whether what was read before still holds."""

    names: tuple[str, ...]
    contents: tuple[bytes, ...]


_NO_FILES = _Files((), ())


def _read_failure_files(project: Project, folder: str) -> _Files:
    paths = [path for end in (".yaml", ".??.yaml") for path in project.glob(f"{folder}/failures{end}")]
    names = tuple(project.name_of(path) for path in paths)
    return _Files(names, tuple(path.read_bytes() for name in names for path in project.list_layer_files(name)))


@lru_cache(maxsize=32)
def _make_failures_text(
    project: Project,
    accelerator: str,
    common: _Files,
    every_file: tuple[tuple[str, _Files], ...],
    host: tuple[bytes, ...],
) -> str:
    image_failures = _merge_failures(project, common, dict(every_file).get(accelerator, _NO_FILES))
    others = {folder: _merge_failures(project, common, files) for folder, files in every_file if folder != accelerator}
    foreign = {
        name: {**_dump_failure(failure), "accelerator": folder}
        for folder, failures in others.items()
        for name, failure in failures.failures.items()
        if name not in image_failures.failures
    }
    languages = {language for failures in (image_failures, *others.values()) for language in failures.translations}
    translations = {
        language: {
            text: words
            for failures in (*others.values(), image_failures)
            for text, words in failures.translations.get(language, {}).items()
        }
        for language in sorted(languages)
    }
    texts = {
        "failures": {name: _dump_failure(failure) for name, failure in image_failures.failures.items()},
        "foreign": foreign,
        "code_forms": {
            table: list(forms)
            for failures in (*others.values(), image_failures)
            for table, forms in failures.code_forms.items()
        },
        "translations": translations,
        "findings": _describe_findings_elsewhere(project, host),
    }
    return format_json(texts)


def _dump_failure(failure: Failure) -> dict[str, Any]:
    """Return a failure as plain data; few have codes."""
    return {key: value for key, value in dump_record(failure).items() if key != "codes" or value}


@lru_cache(maxsize=2)
def _describe_findings_elsewhere(project: Project, host: tuple[bytes, ...]) -> dict[str, dict[str, Any]]:
    """Return the findings that no image's own checks have, as plain data. Accelerators share them."""
    elsewhere = _read_findings_elsewhere(project) if host else {}
    return {number: dump_record(finding) for number, finding in elsewhere.items()}


def _read_findings_elsewhere(project: Project) -> dict[str, FindingElsewhere]:
    """Return what `explain` says about ids that no image's own checks have: those of topologies, and retired ones."""
    topologies = {
        number: FindingElsewhere(
            text=finding.text.replace("{}", "…"), remediation=finding.remediation, source=finding.source
        )
        for number, finding in read_topology_findings().items()
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


@lru_cache(maxsize=32)
def _merge_failures(project: Project, common: _Files, accelerator_files: _Files) -> Failures:
    shared = [_merge_shared_files(project, common)] if common.names else []
    return validate_document(
        Failures, merge_layers([*shared, *(read_layers(project, name) for name in accelerator_files.names)])
    )


@lru_cache(maxsize=2)
def _merge_shared_files(project: Project, files: _Files) -> YamlDocument:
    """Read the files that every accelerator shares."""
    return merge_layers(read_layers(project, name) for name in files.names)
