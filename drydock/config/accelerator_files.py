"""templates/<accelerator>/accelerator.yaml over templates/host.yaml, with their translations → accelerators. IO."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from drydock.config.config_checks import check_fact_places, check_settings, check_translations
from drydock.config.finding_ids import find_id_problems
from drydock.config.project_layers import Contents, merge_layers, read_contents, read_layers
from drydock.config.row_layers import merge_over_host
from drydock.config.stack_files import StackFile
from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import combine_problems, list_repeated, validate_document
from drydock.core.project import Project
from drydock.model.checks import AnyHost, Retired
from drydock.model.variant import Accelerator

HOST = "templates/host.yaml"
TRANSLATIONS = ("templates/host.??.yaml", "templates/*/accelerator.??.yaml")


def read_accelerators(project: Project, files: Mapping[str, StackFile]) -> dict[str, Accelerator]:
    """Read the accelerators that have stacks, by name."""
    host, common = _read_host(project) if (project / HOST).is_file() else (None, None)
    if host and common and (wrong := [*check_translations(common, host)]):
        raise combine_problems(wrong)
    read = {name: _read_accelerator(project, name) for name in sorted({file.accelerator for file in files.values()})}
    problems = list(find_id_problems(common, host, read, files))
    if problems:
        raise combine_problems(problems)
    accelerators = {
        name: _on_any_host(host, document) if host else accelerator for name, (accelerator, document) in read.items()
    }
    for name, (accelerator, document) in read.items():
        problems += check_fact_places(accelerator.checks, accelerators[name], document)
    if problems:
        raise combine_problems(problems)
    return accelerators


def read_retired(project: Project) -> tuple[Retired, ...]:
    """Return the ids of findings that are no longer used. Raises InputError."""
    return _read_host(project)[1].retired


def _read_host(project: Project) -> tuple[YamlDocument, AnyHost]:
    """Read what holds for any host. What was read before is not validated again while no file has changed."""
    return _validate_host(project, read_contents(project, (HOST, TRANSLATIONS[0])))


@lru_cache(maxsize=4)
def _validate_host(project: Project, _contents: Contents) -> tuple[YamlDocument, AnyHost]:
    document = _read_translated(project, HOST)
    return document, validate_document(AnyHost, document)


def _read_translated(project: Project, name: str) -> YamlDocument:
    """Read a file of every layer and its translations, such as host.yaml and host.zh.yaml, as one document."""
    translations = [project.name_of(path) for path in project.glob(name.replace(".yaml", ".??.yaml"))]
    return merge_layers(read_layers(project, file_name) for file_name in (name, *translations))


def _on_any_host(host: YamlDocument, document: YamlDocument) -> Accelerator:
    """Return an accelerator with what any host has, such as checks and caches; its own take precedence."""
    return validate_document(Accelerator, merge_over_host(host, document))


def _read_accelerator(project: Project, folder: str) -> tuple[Accelerator, YamlDocument]:
    document = _read_translated(project, f"templates/{folder}/accelerator.yaml")
    accelerator = validate_document(Accelerator, document)
    problems = [*check_settings((), accelerator, document), *check_translations(accelerator, document)]
    if accelerator.accelerator != folder:
        text = f"found {accelerator.accelerator!r}, expected the folder's name {folder!r}"
        problems.append((document.problem(("accelerator",), text), ""))
    repeated = list_repeated(check.id for check in accelerator.checks)
    problems += [(document.problem(("checks",), f"duplicate check id {check}"), "") for check in repeated]
    if problems:
        raise combine_problems(problems)
    return accelerator, document
