"""Options of verbs, declared once: a field of a record is an option, and the parser, help and pages are made from it.

A field's docstring is the help, its type what the parser takes, its default the default; without a default it is
required, and may be given as a plain word. `Literal` lists the values. Fields that verbs share are in small records
(`model/shared_options.py`).
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

NO_DEFAULT = object()
"""Default of a field that has none."""


class Field(NamedTuple):
    """One option of a record."""

    name: str
    """As the record spells it: all_locked, from_."""
    kind: type
    """bool, int, str, or list for an option that may be repeated."""
    default: Any
    choices: tuple[str, ...]
    """The only values; empty if any is allowed."""

    @property
    def option(self) -> str:
        """Return the name on the command line, without dashes."""
        return self.name.rstrip("_").replace("_", "-")


class VerbOptions:
    """Options of a verb, as values."""

    quiet: bool = False
    """print the result, warnings and errors only"""
    TAKES_AUTO: ClassVar[bool] = False
    """Whether --target may be auto, the row that fits a host."""
    WRITES_PROJECT: ClassVar[bool] = False
    """Whether --dry-run means that the verb writes into a copy of the project."""
    WORDS: ClassVar[tuple[str, ...]] = ()
    """Optional fields whose values may be given as plain words too, after those that are required."""
    TAKES_ALL_WORDS: ClassVar[bool] = False
    """Whether every word that follows is a value of the first of WORDS, also one that names another verb."""

    def __init__(self, **values: Any) -> None:
        """Take values by the names of fields. Raises TypeError for an unknown or a missing one."""
        fields = list_fields(self.__class__)
        missing = [name for name, field in fields.items() if field.default is NO_DEFAULT and name not in values]
        unknown = values.keys() - fields.keys()
        if missing or unknown:
            raise TypeError(f"{type(self).__name__}: missing {missing}, unknown {sorted(unknown)}")
        for name, field in fields.items():
            value = values.get(name, field.default)
            setattr(self, name, tuple(value) if field.kind is list else value)


_FIELDS: dict[type[VerbOptions], Mapping[str, Field]] = {}
"""Record → its fields, once they were read."""


def list_fields(record: type[VerbOptions]) -> Mapping[str, Field]:
    """Return the fields of a record by name: its own first, then those of the records that it is made of."""
    if record not in _FIELDS:
        types = get_type_hints(record)
        names = [
            name for part in record.__mro__ for name in vars(part).get("__annotations__", ()) if not name.isupper()
        ]
        _FIELDS[record] = {
            name: _read_field(name, types[name], getattr(record, name, NO_DEFAULT)) for name in dict.fromkeys(names)
        }
    return _FIELDS[record]


def _read_field(name: str, annotation: Any, default: Any) -> Field:
    if get_origin(annotation) is Literal:
        return Field(name, str, default, tuple(filter(None, get_args(annotation))))
    if get_origin(annotation) is tuple:
        choices = get_args(annotation)[0]
        return Field(name, list, default, get_args(choices) if get_origin(choices) is Literal else ())
    if get_origin(annotation) is UnionType:  # of a type and None
        return Field(name, get_args(annotation)[0], default, ())
    return Field(name, annotation, default, ())


def read_help(record: type[VerbOptions]) -> Mapping[str, str]:
    """Return the help of each field: the docstring after it. Reads the source, which only help and pages need."""
    texts: dict[str, str] = {}
    for part in reversed(record.__mro__):
        texts |= _read_docstrings(part.__module__).get(part.__name__, {})
    return {name: texts.get(name, "") for name in list_fields(record)}


@functools.cache
def _read_docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings of fields, by class."""
    file = getattr(sys.modules[module], "__file__", None)
    if not file or not module.startswith("drydock."):
        return {}
    classes = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_list_docstrings(node)) for node in classes}


def _list_docstrings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            yield field.target.id, " ".join(ast.literal_eval(text.value).split())  # type: ignore[attr-defined]
