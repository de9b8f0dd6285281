"""Stacks laid over those that they inherit from, as documents: each value keeps its position. Pure.

Tables are merged key by key, some lists are added to what is inherited, and everything else is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from drydock.config.project_layers import MORE, LazyPlaces, merge_layers, move_places
from drydock.config.stack_files import StackFile, find_lineage, read_stacks
from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import Problem, combine_problems, validate_document
from drydock.core.project import LOWEST, Project
from drydock.model.variant import Stack, Variant

MERGED = ("env", "serve", "caches", "thresholds")
"""Tables, which are merged with what is inherited, key by key."""
ROLES = "roles"
"""The table of tables by role, which is merged role by role and key by key."""
ADDED = ("trim", "system_sources", "recommended")
"""Lists that are added to what is inherited; another one replaces it, unless its key ends with +."""


class Whole(NamedTuple):
    """A value that is replaced as a whole, though it may be a table or a list."""

    value: Any


def resolve_inheritance(files: Mapping[str, StackFile]) -> dict[str, Stack]:
    """Fill in every stack from those it inherits from. Raises InputError with the problems of all."""
    problems: list[Problem] = []
    stacks: dict[str, Stack] = {}
    for name, file in files.items():
        line, problem = find_lineage(name, files)
        if problem:
            problems.append((file.document.problem(("inherits",), problem[0]), problem[1]))
        elif len(line) == 1:
            stacks[name] = file.stack
        else:
            stacks[name] = validate_document(Stack, merge_stack_files([files[older] for older in reversed(line)]))
    if problems:
        raise combine_problems(problems)
    return stacks


def merge_stack_files(oldest_first: Sequence[StackFile]) -> YamlDocument:
    """Return a stack with what it inherits."""
    layers = [_shape_stack(file) for file in oldest_first]
    merged = merge_layers([YamlDocument("", {}, {}), *layers])
    return YamlDocument(layers[-1].name, unwrap_values(merged.data), merged.places)


def describe_replaced_lists(project: Project, variant: Variant) -> Iterator[str]:
    """Yield which lists of what it inherits a stack of a project replaces."""
    files = read_stacks(project)
    names, _ = find_lineage(variant.stack, files)
    lineage = [files[name] for name in names]
    for number, file in enumerate(lineage[:-1]):
        if file.layer == LOWEST:
            continue
        inherited = merge_stack_files(lineage[:number:-1]).data
        for key, value in file.document.data.items():
            is_list = isinstance(value, list) and key not in (*ADDED, *file.adds)
            if is_list and (old := [item for item in inherited.get(key) or () if item not in value]):
                replaced = f"`{key}` replaces the list of {file.stack.inherits}, and {len(old)} of its entries are gone"
                yield f"{file.document.name}: {replaced}; `{key}+` adds to it"


def _shape_stack(file: StackFile) -> YamlDocument:
    """Return a stack's file in a shape that layers.py lays over others by the rule of stacks."""
    document = file.document
    names = {key: name_layered_key(key, value, (*ADDED, *file.adds)) for key, value in document.data.items()}
    return YamlDocument(
        document.name,
        {names[key]: wrap_values(key, value, MERGED) for key, value in document.data.items()},
        LazyPlaces(
            lambda: {
                new: place
                for key, name in names.items()
                for new, place in move_places(document, (key,), (name,)).items()
            }
        ),
    )


def name_layered_key(key: str, value: Any, added: Iterable[str]) -> str:
    """Return the key under which layers.py adds a list, or replaces a value."""
    return f"{key}{MORE}" if key in added and isinstance(value, list) else key


def wrap_values(key: str, value: Any, tables: Iterable[str]) -> Any:
    """Return the value of a key with all marked that is replaced as a whole."""
    if key == ROLES and isinstance(value, dict):
        return {
            role: {part: {name: Whole(inner) for name, inner in table.items()} for part, table in parts.items()}
            for role, parts in value.items()
        }
    if key in tables and isinstance(value, dict):
        return {name: Whole(inner) for name, inner in value.items()}
    return value if isinstance(value, list) else Whole(value)


def unwrap_values(value: Any) -> Any:
    """Return a merged value without the marks."""
    if isinstance(value, Whole):
        return value.value
    return {key: unwrap_values(inner) for key, inner in value.items()} if isinstance(value, dict) else value
