"""templates/<accelerator>/stacks/<stack>.yaml of all layers → each stack as its file says it. IO.

What a stack inherits is laid under it by stack_layers.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from drydock.config.project_layers import MORE, merge_layers
from drydock.config.strict_yaml import YamlDocument, read_yaml
from drydock.config.validation import Problem, combine_problems, validate_document
from drydock.core.errors import InputError, suggest_nearest
from drydock.core.project import Project, list_files
from drydock.model.record import IDENTIFIER
from drydock.model.variant import Stack, Variant

ACCELERATORS = "templates/*/accelerator.yaml"
STACKS = "templates/*/stacks/*.y*ml"


class StackFile(NamedTuple):
    """A stack as its file says it."""

    accelerator: str
    stack: Stack
    document: YamlDocument
    path: Path
    layer: str
    """Name of the layer that the file is in; empty for the project's own."""
    adds: frozenset[str] = frozenset()
    """Lists that are added to what the stack inherits: their keys end with + in the file."""


def read_stacks(project: Project) -> dict[str, StackFile]:
    """Read every stack, by id; the file is named for the stack, and the folder for its accelerator.

    A stack that inherits the one of its own name below takes that name. The lower stack is then called LAYER/NAME, such
    as drydock/NAME.
    """
    accelerators = {path.parent.name for path in project.glob(ACCELERATORS)}
    files: dict[str, StackFile] = {}
    problems: list[Problem] = []
    for layer, root in project.named.items():
        for path in list_files(root, STACKS):
            file, folder, name = project.shown(path), path.parts[-3], path.name.removesuffix(".yaml")
            if path.suffix != ".yaml" or not re.fullmatch(IDENTIFIER, name):
                problems.append(
                    (f"{file}: invalid file name, expected a stack's id and .yaml", f"an id matches {IDENTIFIER}")
                )
            if folder not in accelerators:
                problems.append(
                    (f"{file}: no file templates/{folder}/accelerator.yaml", suggest_nearest(folder, accelerators))
                )
            try:
                read = _read_stack(path, file, layer, path.read_bytes())
            except InputError as error:
                problems += [(problem, error.hint) for problem in error.problems]
                continue
            problems += _check_name(name, read, files)
            if name in files:
                files[f"{files[name].layer}/{name}"] = files[name]
            files[name] = read
    if problems:
        raise combine_problems(problems)
    return files


@lru_cache(maxsize=256)
def _read_stack(path: Path, file: str, layer: str, _content: bytes) -> StackFile:
    """Read a stack's file. Lists whose key ends with + are noted: they add to what is inherited."""
    document = read_yaml(path, file)
    data = document.data if isinstance(document.data, dict) else {}
    adds = frozenset(key.removesuffix(MORE) for key in data if key.endswith(MORE))
    plain = merge_layers([YamlDocument(file, {}, {}), document]) if adds else document
    return StackFile(path.parts[-3], validate_document(Stack, plain), plain, path, layer, adds)


def _check_name(name: str, read: StackFile, files: Mapping[str, StackFile]) -> Iterator[Problem]:
    """Check that a stack does not take the name of another one, unless it inherits from that."""
    namesake = files.get(name)
    if namesake and namesake.layer == read.layer:
        yield f"{read.document.name}: duplicate name of {namesake.document.name}", "rename one of them"
    elif namesake and read.stack.inherits != f"{namesake.layer}/{name}":
        yield (
            read.document.problem((), f"{namesake.layer} has a stack {name!r}"),
            f"rename the file, or write `inherits: {namesake.layer}/{name}` to change that stack",
        )


def list_stack_files(project: Project, variant: Variant) -> list[Path]:
    """Return the files of a variant's stack and of the stacks it inherits from."""
    files = read_stacks(project)
    line, _ = find_lineage(variant.stack, files)
    return [files[name].path for name in line]


def find_lineage(name: str, files: Mapping[str, StackFile]) -> tuple[list[str], Problem | None]:
    """Return a stack and those it inherits from, nearest first, and the problem found on the way, if any."""
    line = [name]
    accelerator = files[name].accelerator
    while parent := files[line[-1]].stack.inherits:
        parent = _known_as(parent, files[line[-1]], files)
        if parent not in files:
            siblings = [stack_id for stack_id, file in files.items() if file.accelerator == accelerator]
            return line, (f"unknown stack {parent!r}", suggest_nearest(parent, siblings))
        if parent in line:
            cycle = " → ".join([*line[line.index(parent) :], parent])
            return line, (f"a stack cannot inherit from itself: {cycle}", "remove one `inherits`")
        if files[parent].accelerator != accelerator:
            text = f"stack {parent!r} is for {files[parent].accelerator}, expected {accelerator}"
            return line, (text, "a stack inherits from its own accelerator's stacks only")
        line.append(parent)
    return line, None


def _known_as(parent: str, heir: StackFile, files: Mapping[str, StackFile]) -> str:
    """Return the name of a stack that another one inherits: drydock/NAME is NAME if only that layer has it."""
    layer, _, name = parent.rpartition("/")
    is_alone = parent not in files and name in files and layer == files[name].layer != heir.layer
    return name if is_alone else parent
