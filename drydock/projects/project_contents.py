"""What `project add` and `project remove` change: a row's stack, its certificates, then locks and Dockerfiles. IO.

Nothing is written before everything is resolved, and all is taken back if writing fails.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError

from drydock.build import render
from drydock.cli.task_helpers import report_dry_run
from drydock.config.added_files import read_certificate
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import PROJECT_FILE, read_settings
from drydock.config.project_layers import MORE
from drydock.config.rows import ADDITIONS, MATRIX, VARIANTS, list_rows
from drydock.config.stack_files import StackFile, find_lineage, read_stacks
from drydock.config.strict_yaml import read_yaml
from drydock.core.console import log, write_output
from drydock.core.errors import InputError, suggest_nearest
from drydock.core.files import format_json, hold_lock_file, restore_files, write_together
from drydock.core.project import Project
from drydock.core.yaml_writer import set_value, write_yaml
from drydock.lock import lockfile, resolution
from drydock.lock.stack_version import read_edited_matrix
from drydock.model import names
from drydock.model.locked import Lock
from drydock.model.row_record import FILE
from drydock.model.shared_options import ContentOptions
from drydock.model.variant import Variant
from drydock.upgrade import row_record_file

CERTIFICATES = "certificates"
"""Key of `additions`, and the folder that is made where a project has none yet."""
_REQUIREMENT: TypeAdapter[str] = TypeAdapter(names.Requirement)
_PACKAGE: TypeAdapter[str] = TypeAdapter(names.PackageName)
Texts = dict[Path, str | None]
"""File of the project → its new text; None for one that goes."""


class ContentChange(NamedTuple):
    """What was changed, or would be."""

    files: Sequence[str]
    """Files that are written, by their names in the project."""
    locked: Mapping[str, str]
    """Row → what its lock gets and loses, as text."""


# --- which row and which file ---------------------------------------------------------------------------------------


def choose_row(project: Project, target: str) -> Variant:
    """Return the row whose contents change. Raises InputError unless it is one that the project's own files name."""
    if not project.below:
        hint = "`./inv project init DIR` makes a project; run this in it"
        raise InputError("this is drydock itself, and no project of yours", hint=hint)
    own_ids = [*list_rows(read_yaml(project.root / MATRIX, MATRIX))] if (project.root / MATRIX).is_file() else []
    settings = read_settings(project)
    target = target or (settings.defaults.target if settings else "")
    if not own_ids:
        text = f"{MATRIX}: the project has no row of its own"
        raise InputError(text, hint="write one: `variants: {NAME: {inherits: drydock/ROW}}`")
    if not target and len(own_ids) > 1:
        raise InputError("--target: missing, and the project has several rows", hint=f"name one: {', '.join(own_ids)}")
    variant = find_variant(read_matrix(project), target or own_ids[0])
    if variant.id not in own_ids:
        hint = f"write a row of your own into {MATRIX}: `NAME: {{inherits: drydock/{variant.id}}}`"
        raise InputError(f"--target {target}: {variant.id} is no row of this project's {MATRIX}", hint=hint)
    if variant.is_adopted:
        hint = "build a row of drydock with it, or have the image's publisher add it"
        raise InputError(f"{variant.id} is an image of others, to which nothing is added", hint=hint)
    return variant


class _StackTexts:
    """The stack of a row, which is made for that row if it is of a lower layer, and the new texts of both files."""

    def __init__(self, project: Project, variant: Variant) -> None:
        self.project, self.variant = project, variant
        self.files = read_stacks(project)
        self.texts: Texts = {}
        stack = self.files[variant.stack]
        self.is_new = bool(stack.layer)
        self.path = stack.path.parent / f"{variant.stack}.yaml"
        if self.is_new:
            self.path = project.root / "templates" / variant.accelerator / "stacks" / f"{variant.id}.yaml"

    @property
    def lower(self) -> list[StackFile]:
        """Return the stacks that the row's own inherits, the nearest first."""
        line, _ = find_lineage(self.variant.stack, self.files)
        return [self.files[name] for name in (line if self.is_new else line[1:])]

    def read_list(self, key: str) -> tuple[str, list[str]]:
        """Return the key of a list as the file writes it, with + or without, and its entries."""
        data = {} if self.is_new and not self.texts else yaml.safe_load(self._read_text())
        written = key if key in data else f"{key}{MORE}"
        return written, [*data.get(written, ())]

    def set_list(self, key: str, entries: Sequence[str]) -> None:
        """Set a list of the stack. Raises InputError."""
        text = self._read_text() if not self.is_new or self.texts else self._start_stack()
        self.texts[self.path] = set_value(text, self.project.name_of(self.path), (key,), [*entries])

    def _read_text(self) -> str:
        return self.texts.get(self.path) or _read_unchanged(self.path)

    def _start_stack(self) -> str:
        """Return a stack that inherits the row's, and let the row name it."""
        name, stack = self.project.name_of(self.path), self.files[self.variant.stack]
        if self.path.exists():
            hint = f"write `stack: {self.variant.id}` into the row {self.variant.id} of {MATRIX}, or remove the file"
            raise InputError(f"{name}: is there already, and the row {self.variant.id} does not use it", hint=hint)
        matrix = self.project.root / MATRIX
        text = _read_unchanged(matrix)
        self.texts[matrix] = set_value(text, MATRIX, (VARIANTS, self.variant.id, "stack"), self.variant.id)
        parent = f"{stack.layer}/{self.variant.stack.rpartition('/')[2]}"
        return write_yaml({"inherits": parent, "summary": f"{self.variant.stack} with what {self.variant.id} adds"})


def _read_unchanged(path: Path) -> str:
    """Return the text of a file with its own line ends, which Windows' editors write as CR LF."""
    return path.read_bytes().decode()


# --- what is added and removed --------------------------------------------------------------------------------------


def plan_additions(project: Project, variant: Variant, options: ContentOptions) -> Texts:
    """Return the new texts of files that give a row what the options name. Raises InputError."""
    _require_content(options, "add")
    stack = _StackTexts(project, variant)
    if options.package:
        key, entries = stack.read_list("requirements")
        for text in options.package:
            entries = _add_requirement(entries, _parse_requirement(text))
        stack.set_list(key, entries)
    if options.debian:
        key, entries = stack.read_list("packages")
        present = {*(entries), *(variant.base.packages if variant.base.kind == "debian" else ())}
        if variant.base.kind != "debian":
            text = f"--debian: the base of {variant.id} is an image, and Debian packages go on a Debian base only"
            raise InputError(text, hint="supply .deb files: `supplied` of a stack with `install: debs`")
        checked = [_check_debian_name(name) for name in options.debian]
        stack.set_list(key, [*entries, *(name for name in dict.fromkeys(checked) if name not in present)])
    return {**_plan_certificates(project, variant, options.certificate), **stack.texts}


def _require_content(options: ContentOptions, verb: str) -> None:
    if not (options.package or options.debian or options.certificate):
        hint = "name PACKAGE or PACKAGE==VERSION, --debian NAME or --certificate FILE"
        raise InputError(f"project {verb}: names no package and no certificate", hint=hint)


def _parse_requirement(text: str) -> Requirement:
    """Return a requirement as one types it. Raises InputError for another text, an address or an option."""
    try:
        return Requirement(_REQUIREMENT.validate_python(text))
    except (InvalidRequirement, ValidationError) as error:
        single = re.fullmatch(r"([A-Za-z0-9._-]+)=([^=].*)", text)
        hint = f"write {single[1]}=={single[2]}" if single else "write PACKAGE, PACKAGE==VERSION or 'PACKAGE>=VERSION'"
        raise InputError(f"{text}: no requirement of a package in an index", hint=hint) from error


def _add_requirement(entries: Sequence[str], requirement: Requirement) -> list[str]:
    """Return a list with a requirement, which replaces one of the same package for the same machines (its marker)."""
    written = str(requirement)
    replaced_entries = [entry for entry in entries if _read_place(Requirement(entry)) == _read_place(requirement)]
    if not replaced_entries:
        return [*entries, written]
    return [
        written if entry == replaced_entries[0] else entry for entry in entries if entry not in replaced_entries[1:]
    ]


def _read_place(requirement: Requirement) -> tuple[str, str]:
    """Return the package of a requirement and for which machines it is."""
    return canonicalize_name(requirement.name), str(requirement.marker or "")


def _check_debian_name(text: str) -> str:
    """Return the name of a Debian package. Raises InputError, also for a name with a version."""
    try:
        return _PACKAGE.validate_python(text)
    except ValidationError as error:
        hint = "name the package alone: the lock pins its version" if "=" in text else "such as --debian curl"
        raise InputError(f"--debian {text}: no name of a Debian package", hint=hint) from error


def _find_certificates(project: Project, variant: Variant) -> tuple[Path, tuple[str, ...], str]:
    """Return the file and the key of `additions` with a row's certificates, and their folder; empty without one.

    The row's own key counts before that of drydock.yaml, which is for every image of the project.
    """
    row = list_rows(read_yaml(project.root / MATRIX, MATRIX))[variant.id]
    row_folder = (row.get(ADDITIONS) or {}).get(CERTIFICATES, "")
    settings = read_settings(project)
    if not row_folder and settings and settings.additions.certificates:
        return project.root / PROJECT_FILE, (ADDITIONS,), settings.additions.certificates
    return project.root / MATRIX, (VARIANTS, variant.id, ADDITIONS), row_folder


def _plan_certificates(project: Project, variant: Variant, files: Sequence[str]) -> Texts:
    """Return copies of certificates in the project, and the file that names their folder. Raises InputError."""
    if not files:
        return {}
    place, path, folder = _find_certificates(project, variant)
    texts: Texts = {}
    for file in files:
        target = project.root / (folder or CERTIFICATES) / f"{Path(file).stem}.crt"
        if target in texts:
            hint = "give one of them another name, or put both into one file"
            raise InputError(f"--certificate {file}: another one has the name {target.name} too", hint=hint)
        texts[target] = _decode_certificates(read_certificate(Path(file), file))
    return texts if folder else {**texts, place: _name_folder(place, path)}


def _decode_certificates(content: bytes) -> str:
    """Return certificates as text; what stands around them are comments, in whatever encoding."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _name_folder(place: Path, path: Sequence[str]) -> str:
    text = _read_unchanged(place)
    table = yaml.safe_load(text)
    for key in path[:-1]:
        table = table[key]
    if table.get(path[-1]) is None:
        return set_value(text, place.name, path, {CERTIFICATES: CERTIFICATES})
    return set_value(text, place.name, (*path, CERTIFICATES), CERTIFICATES)


def plan_removals(project: Project, variant: Variant, options: ContentOptions) -> Texts:
    """Return the new texts of files that take from a row what the options name. Raises InputError."""
    _require_content(options, "remove")
    stack = _StackTexts(project, variant)
    kinds: tuple[tuple[str, Sequence[str]], ...] = (("requirements", options.package), ("packages", options.debian))
    for kind, removed in kinds:
        key, entries = stack.read_list(kind)
        for text in removed:
            removed_entries = [entry for entry in entries if _name_package(entry) == _name_package(text)]
            if not removed_entries:
                raise _explain_absent(stack, kind, text, entries)
            entries = [entry for entry in entries if entry not in removed_entries]
        if removed:
            stack.set_list(key, entries)
    return {**stack.texts, **_plan_certificate_removal(project, variant, options.certificate)}


def _name_package(text: str) -> str:
    """Return the name of a requirement or a package as indexes compare it."""
    return canonicalize_name(re.split(r"[ \[<>=!~;]", text.strip(), maxsplit=1)[0])


def _explain_absent(stack: _StackTexts, kind: str, text: str, entries: Iterable[str]) -> InputError:
    """Return the error for a package that the row's own stack does not name: who has it instead."""
    name = _name_package(text)
    for file in stack.lower:
        if any(_name_package(entry) == name for entry in getattr(file.stack, kind)):
            way = (
                f"`exclude+: [{{name: {name}, because: WHY}}]` in a stack leaves it out"
                if kind == "requirements"
                else ""
            )
            text = f"{text}: is in {file.document.name}, which the row {stack.variant.id} inherits"
            return InputError(text, hint=way or "write a stack with a `base` of your own, which lists its packages")
    names = [_name_package(entry) for entry in entries]
    others = "the stack has none of its own; what others require goes with them"
    return InputError(
        f"{text}: is not in `{kind}` of the stack of {stack.variant.id}", hint=suggest_nearest(name, names, others)
    )


def _plan_certificate_removal(project: Project, variant: Variant, files: Sequence[str]) -> Texts:
    if not files:
        return {}
    place, path, folder = _find_certificates(project, variant)
    present = {file.name: file for file in sorted((project.root / folder).glob("*.crt"))} if folder else {}
    texts: Texts = {}
    for file in files:
        name = f"{Path(file).stem}.crt"
        if name not in present:
            others = f"the row {variant.id} has no certificates"
            raise InputError(f"--certificate {file}: not found", hint=suggest_nearest(name, present, others))
        texts[present[name]] = None
    if len(texts) == len(present):
        texts[place] = _leave_out_folder(place, path)
    return texts


def _leave_out_folder(place: Path, path: Sequence[str]) -> str:
    """Return a file without the key of a folder that has no certificate any more."""
    text = _read_unchanged(place)
    table: Any = yaml.safe_load(text)
    for key in path:
        table = table[key]
    other_settings = {key: value for key, value in table.items() if key != CERTIFICATES}
    return set_value(text, place.name, path, other_settings)


# --- locked, written, rendered --------------------------------------------------------------------------------------


def apply_texts(
    project: Project, variant: Variant, texts: Texts, *, dry_run: bool = False, env: Mapping[str, str] = os.environ
) -> ContentChange:
    """Lock and render the rows that new texts of files change, and write all of it together, or nothing with `dry_run`.

    Raises InputError for what the matrix refuses, FetchError or UnresolvedError for what cannot be locked: then nothing
    was written.
    """
    before = {row.id: row for row in read_matrix(project)}
    edited_rows = read_edited_matrix(project, texts)
    changed_rows = [row for row in edited_rows if before.get(row.id) != row or row.id == variant.id]
    locks = {row.id: _resolve_edited(project, row, env) for row in changed_rows if _needs_lock(project, row, variant)}
    changes = {
        row.id: row_record_file.describe_lock(
            project, row, lockfile.read_previous(lockfile.path_of_lock(project, row.id)), locks[row.id]
        )
        for row in changed_rows
        if row.id in locks
    }
    rendered_rows = [row.id for row in changed_rows if row.id in locks or _has_current_lock(project, row)]
    generated_names = [
        f"images/{row}/{name}" for row in rendered_rows for name in ("lock.json", render.DOCKERFILE, FILE)
    ]
    edited_names = [project.name_of(path) for path in texts]
    if dry_run:
        return ContentChange([*edited_names, *generated_names], changes)

    with restore_files([*texts, *(project.root / name for name in generated_names)]):
        write_together({path: text for path, text in texts.items() if text is not None})
        for path in [path for path, text in texts.items() if text is None]:
            path.unlink()
        variants = {row.id: row for row in read_matrix(project)}
        written = [resolution.write_resolved_lock(project, variants[row], lock, env) for row, lock in locks.items()]
        locked = [(variants[row], lockfile.read_lock(lockfile.path_of_lock(project, row))) for row in rendered_rows]
        files = [path for path in written if path] + row_record_file.write_rows(project, locked)
    return ContentChange([*edited_names, *map(project.name_of, files)], changes)


def _has_current_lock(project: Project, row: Variant) -> bool:
    return not lockfile.list_lock_problems(project, row)


def _needs_lock(project: Project, row: Variant, variant: Variant) -> bool:
    """Return whether a changed row is to be locked: one that was not locked before stays so, except the named one."""
    is_locked = lockfile.path_of_lock(project, row.id).is_file()
    return (is_locked or row.id == variant.id) and not _has_current_lock(project, row)


def _resolve_edited(project: Project, row: Variant, env: Mapping[str, str]) -> Lock:
    """Return the lock of an edited row. Raises UnresolvedError for an input that the row's lock had before."""
    previous = resolution.read_start_lock(project, row)
    with hold_lock_file(resolution.path_of_resolve_mutex(env)):
        lock = resolution.resolve_variant(row, previous, env=env)
    old = previous.platforms if previous else {}
    missing = {
        platform: {
            context: reason
            for context, reason in pins.unresolved.items()
            if platform not in old or context not in old[platform].unresolved
        }
        for platform, pins in lock.platforms.items()
    }
    if lost := {platform: contexts for platform, contexts in missing.items() if contexts}:
        raise lockfile.unresolved_error({row.id: lost})
    return lock


def report_change(change: ContentChange, options: ContentOptions) -> None:
    """Print which files were written, or would be, and what the locks get and lose."""
    if options.json:
        kind = "would_write" if options.dry_run else "wrote"
        write_output(format_json({kind: change.files, "changes": change.locked}))
        return
    for row, text in change.locked.items():
        log(f"{row}:\n{text.rstrip()}")
    if options.dry_run:
        report_dry_run(change.files)
    else:
        log("\n".join(f"wrote {name}" for name in change.files))
