"""Writes a version of vLLM into the stacks of a row; that of another minor version gets a row of its own. IO."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from drydock.config.matrix import read_matrix
from drydock.config.rows import MATRIX
from drydock.config.stack_files import list_stack_files
from drydock.config.strict_yaml import KeyPath, YamlDocument, parse_yaml, read_yaml
from drydock.core.console import log
from drydock.core.errors import DrydockError, InputError
from drydock.core.files import write_together
from drydock.core.project import Project
from drydock.lock import new_row
from drydock.model.record import dump_record
from drydock.model.variant import Variant

VERSION: KeyPath = ("vllm", "version")
MovedPins = Mapping[str, tuple[str, str]]
"""Distribution → the versions of it that the old and the new vLLM require, where they differ."""


class NewRows(NamedTuple):
    """Rows that a new version gets."""

    version: str
    ids: Mapping[str, str]
    """Old row → new row."""
    moved_pins: MovedPins


class VersionChange(NamedTuple):
    """A version of vLLM that was written into stacks."""

    files: list[Path]
    """What changed."""
    rows: dict[str, str]
    """Old row → the row that has the new version: itself, unless its id names a version."""


def find_version_file(project: Project, variant: Variant) -> Path:
    """Return the stack file that says the version of a variant's vLLM."""
    files = list_stack_files(project, variant)
    return next((name for name in files if VERSION in read_yaml(name, str(name)).places), files[0])


def check_version(variant: Variant, version: str) -> None:
    """Raise InputError for a version that no index has, with the newest. Where no index answers, nothing is known."""
    if not any(text.startswith(variant.vllm.distribution) for text in variant.requirements):
        return
    from drydock.inputs.uv import ResolveRequest  # noqa: PLC0415 - what speaks to indexes is not needed otherwise
    from drydock.inputs.wheels import find_image_environment, list_offered_wheels  # noqa: PLC0415 - as above

    target = find_image_environment(variant.python, variant.platforms[0], variant.base)
    ask = functools.partial(ResolveRequest, no_deps=True, public=variant.indexes)
    try:
        list_offered_wheels(ask((f"{variant.vllm.distribution}=={version}",)), target)
    except InputError as error:
        try:
            newest = list_offered_wheels(ask((variant.vllm.distribution,)), target)
        except DrydockError:
            return
        message = f"--vllm {version}: no index has {variant.vllm.distribution} {version} for {variant.platforms[0]}"
        raise InputError(message, hint=f"the newest is {newest[0].version}; nothing was changed") from error


def find_moved_pins(variant: Variant, version: str) -> dict[str, tuple[str, str]]:
    """Return the distributions of which the new vLLM requires another version than the old one, such as torch.

    Where no index answers, nothing is known, and nothing moves.
    """
    from drydock.inputs.store import default_store  # noqa: PLC0415 - what speaks to indexes is not needed otherwise
    from drydock.inputs.wheels import find_image_environment, read_required_pins  # noqa: PLC0415 - as above

    target = find_image_environment(variant.python, variant.platforms[0], variant.base)
    try:
        old, new = (
            read_required_pins(
                f"{variant.vllm.distribution}=={number}", variant.indexes, target, default_store(os.environ), os.environ
            )
            for number in (variant.vllm.version, version)
        )
    except DrydockError as error:
        log(f"what vLLM requires was not compared: {error.problems[0]}")
        return {}
    return {name: (old[name], new[name]) for name in old if name in new and old[name] != new[name]}


def check_files(
    project: Project, file: Path, rows: Sequence[Variant], version: str
) -> tuple[list[Path], dict[str, str]]:
    """Return the stack files that say a version, and old → new row. Raises InputError if they are not to be written."""
    if not re.fullmatch(r"\d+\.\d[0-9a-z.]*", version):
        raise InputError(f"--vllm {version}: expected a version such as 0.32.1")
    lines = [list_stack_files(project, row) for row in rows]
    names = [*dict.fromkeys(name for line in lines for name in line[: line.index(file) + 1])]
    new_ids = new_row.choose_new_ids((row.id for row in rows), version)
    if foreign := [
        name for name in (file, *names, *([project / MATRIX] if new_ids else [])) if not project.is_own(name)
    ]:
        owner = project.owner_of(foreign[0])
        hint = f"write a stack of your own that inherits it: `inherits: {owner}/{foreign[0].stem}`"
        raise InputError(f"--vllm {version}: {foreign[0]} is {owner}'s own", hint=hint)
    return names, new_ids


def set_version(project: Project, variant: Variant, file: Path, rows: Sequence[Variant], version: str) -> VersionChange:
    """Write the version into these rows' stack files, or into new ones for new rows.

    Nothing is written if the matrix refuses it.
    """
    names, new_ids = check_files(project, file, rows, version)
    check_version(variant, version)
    moved_pins = find_moved_pins(variant, version)
    after = _edit_versions(project, variant, file, names, version, moved_pins)
    if new_ids:
        after = _write_new_rows(project, variant, file, after, NewRows(version, new_ids, moved_pins))
    try:
        read_edited_matrix(project, after)
    except InputError as error:
        hint = (
            f"nothing was changed; change {project.shown(file)} and what is named here by hand, then leave --vllm out"
        )
        raise InputError(*(f"--vllm {version}: {problem}" for problem in error.problems), hint=hint) from error
    changed_paths = write_together(after)
    for path in changed_paths if not new_ids else ():
        for number, line in enumerate(after[path].splitlines(), 1):
            if re.search(rf"(?<![\w.])v?{re.escape(variant.vllm.version)}(?![\w.])", line):
                log(f"{project.shown(path)}:{number}: still says {variant.vllm.version}: {line.strip()}")
    return VersionChange(changed_paths, {row.id: new_ids.get(row.id, row.id) for row in rows})


def _write_new_rows(
    project: Project, variant: Variant, file: Path, edited: Mapping[Path, str], to: NewRows
) -> dict[Path, str]:
    """Return the texts of new stacks, and of matrix.yaml with the new rows. `edited` has the stacks with the version.

    The stack that says the version inherits the one before. Those above it are copied, and inherit its heir.
    """
    old, new = (new_row.find_version(row) for row in next(iter(to.ids.items())))
    if Version(to.version) < Version(variant.vllm.version):
        problem = f"--vllm {to.version}: is older than {variant.vllm.version}, whose row has the aliases"
        raise InputError(problem, hint="write a stack and a line in matrix.yaml by hand; nothing was changed")
    stacks = {path.stem: new_row.rename_stack(path.stem, old, new) for path in edited}
    texts: dict[Path, str] = {}
    for path, text in edited.items():
        document = read_yaml(path, project.shown(path))
        summary = new_row.retell_summary(document.data["summary"], old, new, to.moved_pins)
        target = path.with_name(f"{stacks[path.stem]}.yaml")
        if target.exists():
            raise InputError(
                f"--vllm {to.version}: {project.shown(target)} is there already", hint="remove it, or rename it"
            )
        if path == file:
            after = parse_yaml(text, str(path)).data
            keys = [key for key, value in after.items() if value != document.data[key]]
            texts[target] = new_row.write_heir(text, path.stem, summary, keys, _restate_overrides(variant))
        else:
            texts[target] = new_row.copy_stack(text, summary, stacks, to.ids)
    matrix = project.root / MATRIX
    texts[matrix] = new_row.add_rows(matrix.read_text(encoding="utf-8"), read_yaml(matrix, MATRIX), to.ids, stacks)
    return texts


def _restate_overrides(variant: Variant) -> dict[str, Any]:
    """Return the key `overrides` without those that the old version alone needed; nothing if all stay."""
    number = re.compile(rf"(?<![\w.]){re.escape(variant.vllm.version)}(?![\w.])")
    overrides = [dump_record(item) for item in variant.overrides if not number.search(item.because)]
    return {} if len(overrides) == len(variant.overrides) else {"overrides": overrides}


def read_edited_matrix(project: Project, texts: Mapping[Path, str | None]) -> tuple[Variant, ...]:
    """Read a matrix whose files have other texts, before they are written; None: without that file.

    Raises InputError.
    """
    with tempfile.TemporaryDirectory(prefix="drydock-edit-") as folder:
        root, edited = project.root.absolute(), Path(folder)
        for name, text in {project.name_of(path): text for path, text in texts.items()}.items():
            place = edited / name
            for parent in reversed(Path(name).parents):
                _make_folder_of_links(edited / parent, root / parent)
            place.unlink(missing_ok=True)  # a link to the project's own
            if text is not None:
                place.write_bytes(text.encode())
        return read_matrix(replace(project, root=edited, is_discovered=False))


def _make_folder_of_links(folder: Path, target: Path) -> None:
    """Make a folder, or replace a link to it, so that files of it can be others; all its entries are links."""
    if folder.is_dir() and not folder.is_symlink() and any(folder.iterdir()):
        return  # it was made for another file
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(exist_ok=True)
    for path in target.iterdir() if target.is_dir() else ():
        (folder / path.name).symlink_to(path)


def _edit_versions(
    project: Project, variant: Variant, file: Path, names: Iterable[Path], version: str, moved_pins: MovedPins
) -> dict[Path, str]:
    """Return the new text of each file. Raises InputError unless each place has the old version exactly once."""
    old, pin = variant.vllm.version, f"{variant.vllm.distribution}=="
    texts: dict[Path, str] = {}
    pins = 0
    for name in names:
        document = read_yaml(name, project.shown(name))
        lines = name.read_bytes().decode().splitlines(keepends=True)
        edits: dict[KeyPath, tuple[str, str]] = {VERSION: (old, version)} if name == file else {}
        for at, text in enumerate(document.data.get("requirements") or ()):
            moved = _move_pin(text, {**moved_pins, canonicalize_name(variant.vllm.distribution): (old, version)})
            pins += text != moved and canonicalize_name(Requirement(text).name) not in moved_pins
            edits |= {("requirements", at): (text, moved)} if text != moved else {}
        for path, (before, after) in edits.items():
            number = document.places[path].line - 1
            lines[number] = _replace_once(document, path, lines[number], before, after)
        texts[name] = "".join(lines)
    if not pins:
        text = f"--vllm {version}: no requirement {pin}{old} in {', '.join(project.shown(path) for path in texts)}"
        raise InputError(
            text, hint=f"vLLM comes from elsewhere: change {project.shown(file)} by hand, then leave --vllm out"
        )
    return texts


def _move_pin(requirement: str, moved_pins: MovedPins) -> str:
    """Return a requirement with the new version of its distribution, if it names the old one: torch==2.13.0+cpu."""
    parsed = Requirement(requirement)
    before, after = moved_pins.get(canonicalize_name(parsed.name), ("", ""))
    if not any(item.operator == "==" and item.version.partition("+")[0] == before for item in parsed.specifier):
        return requirement
    return re.sub(rf"(?<![\w.]){re.escape(before)}(?![\w.])", after, requirement)


def _replace_once(document: YamlDocument, path: KeyPath, line: str, old: str, new: str) -> str:
    """Replace what a line has exactly once; a part of a longer version or name does not count."""
    text, count = re.subn(rf"(?<![\w.-]){re.escape(old)}(?![\w.])", new, line)
    if count != 1:
        problem = document.problem(path, f"found {old} {count} times in this line, expected once")
        raise InputError(problem, hint="put each value on a line of its own, or set the version by hand")
    return text
