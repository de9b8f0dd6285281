"""matrix.yaml, and the accelerators and stacks in templates/ → variants with every inherited value filled in. IO.

    rows.py               matrix.yaml of all layers, as one document
    stack_files.py        stacks as their files say them; stack_layers.py lays each over those that it inherits from
    accelerator_files.py  accelerators, each over what holds for any host
    config_checks.py      what records cannot check
    added_files.py        files of the project that images get
    expansion.py          a row, its stack and its accelerator → a variant

All problems of a stage are collected and raised at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from drydock.config.accelerator_files import HOST, TRANSLATIONS, read_accelerators
from drydock.config.added_files import read_added_files
from drydock.config.config_checks import check_matrix, check_stacks
from drydock.config.expansion import Inherited, expand_row
from drydock.config.hardening_policy import POLICY_FILE, find_committed_secrets
from drydock.config.project_choice import PROJECT_FILE, read_settings
from drydock.config.project_layers import Contents, read_contents
from drydock.config.rows import MATRIX, own_rows, read_rows
from drydock.config.stack_files import ACCELERATORS, STACKS, StackFile, find_lineage, read_stacks
from drydock.config.stack_layers import resolve_inheritance
from drydock.config.strict_yaml import YamlDocument
from drydock.config.target_hints import hint_target
from drydock.config.validation import Problem, combine_problems, validate_document
from drydock.core.errors import TargetError, suggest_nearest
from drydock.core.project import Project
from drydock.model.additions import Additions
from drydock.model.project_record import ProjectFile
from drydock.model.variant import Matrix, Variant


def read_matrix(project: Project) -> tuple[Variant, ...]:
    """Read the matrix, every stack, and the accelerators that have stacks; return the variants, sorted by id.

    What was read before is not validated again while no file has changed. Raises InputError with every problem found.
    """
    names = (MATRIX, PROJECT_FILE, HOST, ACCELERATORS, STACKS, *TRANSLATIONS, POLICY_FILE)
    variants = _read_matrix(project, read_contents(project, names))
    checked: list[Additions] = []
    for added in (variant.additions for variant in variants if not variant.additions.is_empty):
        if added not in checked:
            read_added_files(project, added)
            checked.append(added)
    return variants


@lru_cache(maxsize=4)
def _read_matrix(project: Project, contents: Contents) -> tuple[Variant, ...]:
    if secrets := [*find_committed_secrets(project, contents)]:
        raise combine_problems(secrets)
    document = read_rows(project)
    matrix = validate_document(Matrix, document)
    files = read_stacks(project)
    matrix = _keep_highest_defaults(project, matrix, files, document)
    accelerators = read_accelerators(project, files)
    stacks = resolve_inheritance(files)
    used_stacks = {row.stack for row in matrix.variants.values()}
    problems = [
        *check_stacks(files, stacks, accelerators, used_stacks),
        *check_matrix(matrix, files, stacks, accelerators, document),
    ]
    if problems:
        raise combine_problems(problems)
    settings = read_settings(project)
    every = settings.additions if settings else Additions()
    variants = []
    for name in _choose_rows(project, settings, matrix):
        stack = matrix.variants[name].stack
        line, _ = find_lineage(stack, files)
        accelerator = accelerators[files[stack].accelerator]
        inherited = Inherited(accelerator, stacks[stack], [files[older] for older in line])
        variants.append(expand_row(project, name, matrix, document, inherited, every))
    return tuple(variants)


def _keep_highest_defaults(
    project: Project, matrix: Matrix, files: Mapping[str, StackFile], document: YamlDocument
) -> Matrix:
    """Return the matrix in which a default row of a layer replaces that of lower layers for the same accelerator."""
    layers = [*project.named]

    def height(name: str) -> int:
        place = document.places.get(("variants", name, "default"))
        return layers.index(project.owner_of(project.root / (place.file if place else "")))

    defaults = {name: row for name, row in matrix.variants.items() if row.default and row.stack in files}
    highest: dict[str, int] = {}
    for name, row in defaults.items():
        accelerator = files[row.stack].accelerator
        highest[accelerator] = max(highest.get(accelerator, 0), height(name))
    rows = {
        name: row.model_copy(update={"default": False})
        for name, row in defaults.items()
        if height(name) < highest[files[row.stack].accelerator]
    }
    return matrix.model_copy(update={"variants": {**matrix.variants, **rows}})


def _choose_rows(project: Project, settings: ProjectFile | None, matrix: Matrix) -> list[str]:
    """Return the ids of a project's rows: all, or its own and the named ones of drydock. Raises InputError."""
    if not settings or settings.rows == "all":
        return sorted(matrix.variants)
    unknown = [name for name in settings.rows if name not in matrix.variants]
    if unknown:
        raise combine_problems([_explain_unknown_row(name, matrix) for name in unknown])
    return sorted(own_rows(project) | {*settings.rows})


def _explain_unknown_row(name: str, matrix: Matrix) -> Problem:
    if name in matrix.retired:
        text, hint = f"drydock retired the row {name!r}", f"name {matrix.retired[name]}, which replaces it"
    else:
        text, hint = (
            f"unknown row {name!r}",
            suggest_nearest(name, matrix.variants, "`./inv matrix` outside of this project lists drydock's rows"),
        )
    return f"{PROJECT_FILE}: rows: {text}", hint


def find_variant(variants: Sequence[Variant], target: str, option: str = "--target") -> Variant:
    """Return the variant that a target means: its id, an alias, or an accelerator (its default).

    `option` is what the user typed it as: an option, or a key of a file. Raises TargetError.
    """
    for variant in variants:
        if variant.answers_to(target):
            return variant
    for variant in variants:
        if target in variant.replaces:
            hint = f"use {option} {variant.id}; `git log -- images/{target}` lists commits with it"
            raise TargetError(f"{option}: the row {target!r} is retired: {variant.id} replaces it", hint=hint)
    if rows := [variant.id for variant in variants if variant.accelerator == target]:
        raise TargetError(f"{option}: no default row of {target}", hint=f"name a row: {', '.join(rows)}")
    targets = sorted({name for variant in variants for name in (variant.id, variant.accelerator, *variant.aliases)})
    raise TargetError(f"{option}: unknown target {target!r}", hint=hint_target(target, targets))


def find_recorded_variant(project: Project, row: str, where: str, hint: str) -> Variant:
    """Return the row that an image or a file names, which no option of the user's does; `where` names that.

    Raises TargetError for a row that the project does not have.
    """
    for variant in read_matrix(project):
        if variant.id == row:
            return variant
    raise TargetError(f"{where}: it is of the row {row}, which the project {project.root} does not have", hint=hint)


def find_matching_variants(variants: Sequence[Variant], words: Sequence[str]) -> list[Variant]:
    """Return the variants that any of the words names: an id, an alias, an accelerator or its beginning; all if none.

    Raises TargetError for a word that names none.
    """
    matching_variants = []
    for word in words:
        matches = [variant for variant in variants if variant.accelerator == word or variant.id.startswith(word)]
        matching_variants += matches or [find_variant(variants, word)]
    return [variant for variant in variants if variant in matching_variants] if words else [*variants]
