"""Hints about keys and values of a project's files that are in the wrong place or have another form. Pure."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from drydock.config.strict_yaml import KeyPath
from drydock.core.errors import suggest_nearest
from drydock.model.additions import Additions
from drydock.model.project_record import ProjectDefaults, ProjectFile
from drydock.model.record import Setting
from drydock.model.variant import Accelerator, Matrix, MatrixRow, Stack

PLACES: Mapping[type[BaseModel], str] = {
    Additions: "below `additions`, in drydock.yaml for every image or in a row of matrix.yaml",
    MatrixRow: "in a row, below `variants` in matrix.yaml",
    Stack: "in a stack, templates/ACCELERATOR/stacks/NAME.yaml, which a row names by `stack: NAME`",
    ProjectDefaults: "below `defaults` in drydock.yaml",
    ProjectFile: "in drydock.yaml",
    Matrix: "at the top of matrix.yaml",
    Accelerator: "in templates/ACCELERATOR/accelerator.yaml",
}
"""Record → where its keys are written; the first that has a key is named."""
OTHER_NAMES = {
    "apt": "packages",
    "args": "serve",
    "arguments": "serve",
    "ca": "certificates",
    "certs": "certificates",
    "debs": "packages",
    "dependencies": "requirements",
    "dockerfile_lines": "dockerfile",
    "environment": "env",
    "extends": "inherits",
    "flags": "serve",
    "from_image": "base",
    "image": "base",
    "options": "serve",
    "pip": "requirements",
    "pip_packages": "requirements",
    "python_packages": "requirements",
    "rows": "variants",
    "settings": "serve",
    "variables": "env",
}
"""What people write → the key that means it. A record that has such a key itself is not asked."""
FORM = "{{value: {value}, because: WHY, source: MANUAL OR MEASUREMENT}}"
"""The three keys of a setting."""
_SIMILAR = 0.75
"""Least similarity of a key that is taken for a slip of the pen. 0.5 takes hermetic for requirements."""


def hint_key(record: type[BaseModel], path: KeyPath, key: str, value: Any) -> str:
    """Return what to do about a key that a record does not have at a path: its place, or the key that is meant."""
    here, name = known_keys(record, path), key.removesuffix("+")
    meant = OTHER_NAMES.get(name, name)
    if key != name and name in here:
        return f"`{key}` adds to a list: write it with a list, or `{name}` without +"
    if (list_name := key.rstrip("-")) != key and list_name in here:
        instead = "; `exclude+` leaves a distribution out" if "exclude" in here else ""
        return (
            f"nothing is taken from a list: write all of it as `{list_name}`, which replaces the inherited one{instead}"
        )
    if close := difflib.get_close_matches(name, here, n=1, cutoff=_SIMILAR):
        return f"did you mean {close[0]!r}?"
    if meant in here:
        return f"write `{meant}`"
    return (_hint_place(record, path, meant, value, here) if record in PLACES else "") or suggest_nearest(name, here)


def _hint_place(record: type[BaseModel], path: KeyPath, key: str, value: Any, here: set[str]) -> str:
    """Return where a key belongs that other records of a project have; empty for one that none has."""
    if setting := _table_of(key):
        place = "" if setting in here else f" {PLACES[MatrixRow]}"
        return f"write `{setting}: {{{key}: {_format_setting(value)}}}`{place}"
    places = [place for kind, place in PLACES.items() if key in _read_fields(kind)]
    if places:
        return f"`{key}` belongs {', or '.join(places[:2])}"
    is_row = record is Matrix and not path and isinstance(value, dict)
    return f"a row belongs below `variants`: `variants: {{{key}: …}}`" if is_row else ""


def hint_form(record: type[BaseModel], path: KeyPath, value: Any) -> str:
    """Return what to write for a value that has not the form of what a record has at a path; empty if unknown."""
    of = [*_types_at(record, path)]
    name = path[-1] if path else ""
    if Setting in of and not isinstance(value, list):
        return _hint_setting(str(path[-2]), str(name), value)
    if any(Setting in _types_at(kind, ("--flag",)) for kind in of) and _is_table(of):
        example = "--max-num-seqs" if name == "serve" else "VLLM_LOGGING_LEVEL"
        return f"write `{name}: {{{example}: {FORM.format(value='…')}}}`"
    if MatrixRow in of:
        return f"write `{name}: {{inherits: {value if isinstance(value, str) else 'drydock/ROW'}}}`"
    if len(of) == 1 and (form := _format_record(of[0], value)):
        return f"write `{form}`"
    return ""


def hint_list(record: type[BaseModel], path: KeyPath, value: Any) -> str:
    """Return what to write for a value that is no list, where a record has one at a path."""
    forms = [_format_record(kind, value) for kind in _types_at(record, (*path, 0))]
    plain = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else "…"
    return f"write `{path[-1]}: [{next(filter(None, forms), plain)}]`" if path else ""


def _format_record(kind: Any, value: Any) -> str:
    """Return a record with the keys that it requires, of which the first has a value that someone wrote without them.

    Empty for what is no record.
    """
    keys = [field.alias or name for name, field in _read_model_fields(kind).items() if field.is_required()]
    if not keys:
        return ""
    first = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else "…"
    words = {"because": "WHY", "source": "MANUAL OR MEASUREMENT", keys[0]: first}
    return "{" + ", ".join(f"{key}: {words.get(key, '…')}" for key in keys) + "}"


def hint_missing(record: type[BaseModel], path: KeyPath) -> str:
    """Return what to do about a key that is missing at a path; empty if there is nothing to add."""
    of = [*_types_at(record, path)]
    if Setting in of:
        return f"a setting has three keys: `{path[-1]}: {FORM.format(value='…')}`"
    if MatrixRow in of:
        return "add it; or `inherits: drydock/ROW` in a project's row, which takes it from a row of drydock"
    return ""


def known_keys(annotation: Any, path: KeyPath) -> set[str]:
    """Return the keys that a record type allows at a path."""
    return {key for kind in _types_at(annotation, path) for key in _read_fields(kind)}


def _types_at(annotation: Any, path: KeyPath) -> Iterator[Any]:
    """Yield what an annotation allows at a path: records, and other types."""
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        for argument in arguments:
            yield from _types_at(argument, path)
    elif get_origin(annotation) is Annotated:
        yield from _types_at(arguments[0], path)
    elif not path:
        yield annotation
    elif fields := _read_fields(annotation):
        if str(path[0]) in fields:
            yield from _types_at(fields[str(path[0])], path[1:])
    elif arguments:
        yield from _types_at(next(item for item in reversed(arguments) if item is not Ellipsis), path[1:])


def _read_fields(kind: Any) -> Mapping[str, Any]:
    """Return key → type of a record; nothing of another type."""
    return {field.alias or name: field.annotation for name, field in _read_model_fields(kind).items()}


def _read_model_fields(kind: Any) -> Mapping[str, FieldInfo]:
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}


def _is_table(of: list[Any]) -> bool:
    return any(get_origin(kind) is not None and issubclass(get_origin(kind), Mapping) for kind in of)


def _hint_setting(table: str, name: str, value: Any) -> str:
    """Return how a setting of `serve` or `env` is written, in the other one if it belongs there."""
    if table == "serve" and not _table_of(name):
        name = f"--{name.replace('_', '-')}"
    right = _table_of(name)
    setting_text = f"{name}: {_format_setting(value)}"
    return f"write `{right}: {{{setting_text}}}`" if right and right != table else f"write `{setting_text}`"


def _table_of(name: str) -> str:
    """Return where a flag of vLLM or a variable belongs, by how it is written; empty for another key."""
    if name.startswith("--"):
        return "serve"
    return "env" if name.isupper() and name.isidentifier() else ""


def _format_setting(value: Any) -> str:
    """Return the three keys of a setting, with a value that someone wrote without them."""
    if isinstance(value, dict):
        value = value.get("value", "…")
    plain = value is not None and not isinstance(value, list)
    return FORM.format(value=json.dumps(value, ensure_ascii=False) if plain and value != "…" else "…")
