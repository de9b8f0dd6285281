"""Writes a version of vLLM into the stacks of a row. IO."""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from drydock.config.matrix import read_matrix
from drydock.config.stack_files import list_stack_files
from drydock.config.strict_yaml import KeyPath, YamlDocument, read_yaml
from drydock.core.console import log
from drydock.core.errors import DrydockError, InputError
from drydock.core.files import write_together
from drydock.core.project import Project
from drydock.model.variant import Variant

VERSION: KeyPath = ("vllm", "version")


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


def set_version(project: Project, variant: Variant, file: Path, rows: Iterable[Variant], version: str) -> list[Path]:
    """Write the version into these rows' stack files; put the old text back if the matrix refuses it."""
    if not re.fullmatch(r"\d+\.\d[0-9a-z.]*", version):
        raise InputError(f"--vllm {version}: expected a version such as 0.32.1")
    lines = [list_stack_files(project, row) for row in rows]
    names = dict.fromkeys(name for line in lines for name in line[: line.index(file) + 1])
    if foreign := [name for name in (file, *names) if not project.is_own(name)]:
        owner = project.owner_of(foreign[0])
        hint = f"write a stack of your own that inherits it: `inherits: {owner}/{foreign[0].stem}`"
        raise InputError(f"--vllm {version}: {foreign[0]} is {owner}'s own", hint=hint)
    check_version(variant, version)
    after = _edit_versions(project, variant, file, names, version)
    try:
        _read_edited_matrix(project, after)
    except InputError as error:
        hint = (
            f"nothing was changed; change {project.shown(file)} and what is named here by hand, then leave --vllm out"
        )
        raise InputError(*(f"--vllm {version}: {problem}" for problem in error.problems), hint=hint) from error
    changed_paths = write_together(after)
    for path in changed_paths:
        for number, line in enumerate(after[path].splitlines(), 1):
            if re.search(rf"(?<![\w.])v?{re.escape(variant.vllm.version)}(?![\w.])", line):
                log(f"{project.shown(path)}:{number}: still says {variant.vllm.version}: {line.strip()}")
    return changed_paths


def _read_edited_matrix(project: Project, texts: Mapping[Path, str]) -> None:
    """Read a matrix whose files have other texts, before they are written. Raises InputError."""
    with tempfile.TemporaryDirectory(prefix="drydock-bump-") as folder:
        root, edited = project.root.absolute(), Path(folder)
        for path in root.iterdir():
            if path.name != "templates":
                (edited / path.name).symlink_to(path)
        shutil.copytree(root / "templates", edited / "templates", copy_function=os.symlink)
        for path, text in texts.items():
            place = edited / project.name_of(path)
            place.unlink()
            place.write_text(text)
        read_matrix(replace(project, root=edited, is_discovered=False))


def _edit_versions(
    project: Project, variant: Variant, file: Path, names: Iterable[Path], version: str
) -> dict[Path, str]:
    """Return the new text of each file. Raises InputError unless each place has the old version exactly once."""
    old, pin = variant.vllm.version, f"{variant.vllm.distribution}=="
    pinned = re.compile(rf"{re.escape(variant.vllm.distribution)}(\[[\w, -]+\])?==")
    texts: dict[Path, str] = {}
    pins = 0
    for name in names:
        document = read_yaml(name, project.shown(name))
        lines = name.read_bytes().decode().splitlines(keepends=True)
        required = enumerate(document.data.get("requirements") or ())
        matches = ((at, pinned.match(text)) for at, text in required)
        places: dict[KeyPath, str] = {("requirements", at): match[0] for at, match in matches if match}
        pins += len(places)
        for path, start in {**places, **({VERSION: ""} if name == file else {})}.items():
            number = document.places[path].line - 1
            lines[number] = _replace_once(document, path, lines[number], start + old, start + version)
        texts[name] = "".join(lines)
    if not pins:
        text = f"--vllm {version}: no requirement {pin}{old} in {', '.join(project.shown(path) for path in texts)}"
        raise InputError(
            text, hint=f"vLLM comes from elsewhere: change {project.shown(file)} by hand, then leave --vllm out"
        )
    return texts


def _replace_once(document: YamlDocument, path: KeyPath, line: str, old: str, new: str) -> str:
    """Replace what a line has exactly once; a part of a longer version or name does not count."""
    text, count = re.subn(rf"(?<![\w.-]){re.escape(old)}(?![\w.])", new, line)
    if count != 1:
        problem = document.problem(path, f"found {old} {count} times in this line, expected once")
        raise InputError(problem, hint="put each value on a line of its own, or set the version by hand")
    return text
