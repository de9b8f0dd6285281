"""A parsed document → a record, or one readable error that lists all its problems. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, to_json

from drydock.config.key_places import hint_form, hint_key, hint_list, hint_missing
from drydock.config.strict_yaml import KeyPath, YamlDocument
from drydock.core.errors import InputError
from drydock.model.names import EXPECTED

R = TypeVar("R", bound=BaseModel)

_BASE = "such as base: {{kind: image, reference: ubuntu:24.04{}, release: ubuntu:24.04}}"
BASE_HINT, BASE_WITH_DIGEST = _BASE.format(""), _BASE.format(", digest: sha256:…")
_TABLE, _LIST = "keys and values", "a list"
Problem = tuple[str, str]
"""A message, and a hint or an empty text."""


def validate_document(record: type[R], document: YamlDocument) -> R:
    """Turn a document into a record. Raises InputError with every problem and its key path."""
    try:
        return record.model_validate_json(to_json(document.data), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise combine_problems([_explain_error(record, document, detail) for detail in details]) from error


def make_record(record: type[R], where: str, values: Mapping[str, Any]) -> R:
    """Make a record of what an index, a mirror or an operator's folder says; errors refer to it as `where`.

    Raises InputError.
    """
    return validate_document(record, YamlDocument(where, dict(values), {}))


def list_repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def combine_problems(problems: list[Problem]) -> InputError:
    """Return one error for all problems, without duplicates; if there are several, each ends with its own hint."""
    unique = list(dict.fromkeys(problems))
    if len(unique) == 1:
        return InputError(unique[0][0], hint=unique[0][1])
    return InputError(*(f"{text}; {hint}" if hint else text for text, hint in unique))


def _explain_error(record: type[BaseModel], document: YamlDocument, detail: ErrorDetails) -> Problem:
    """Explain one pydantic error to someone who knows the file and not pydantic."""
    path, context = _written_path(document.data, detail["loc"]), detail.get("ctx", {})
    parent, last = path[:-1], str(path[-1]) if path else ""
    actual = _describe_actual(document, path, detail["input"])
    match detail["type"]:
        case "extra_forbidden":
            return document.problem(parent, f"unknown key {last!r}", at=path), hint_key(
                record, parent, last, detail["input"]
            )
        case "missing" if isinstance(detail["loc"][-1], int):
            return document.problem(path, f"found {actual}, expected more values"), ""
        case "missing":
            return document.problem(parent, f"missing key {last!r}"), hint_missing(record, parent)
        case "union_tag_not_found":
            return document.problem(path, f"missing key {context['discriminator']}"), ""
        case "string_type" if isinstance(detail["input"], bool | int | float):
            text = f"found {actual}, which YAML reads as {json.dumps(detail['input'])}, expected text"
            return document.problem(path, text), f'quote it: "{actual}"'
    expected = _describe_expected(detail["type"], detail["loc"], context) or detail["msg"].lower()
    hint = ""
    if path[-1:] == ("base",) and isinstance(detail["input"], str):
        hint = BASE_WITH_DIGEST if "@" in detail["input"] else BASE_HINT
    elif expected == _TABLE:
        hint = hint_form(record, path, detail["input"])
    elif expected == _LIST:
        hint = hint_list(record, path, detail["input"])
    return document.problem(path, f"found {actual}, expected {expected}"), hint


def _describe_expected(kind: str, location: tuple[str | int, ...], context: Mapping[str, Any]) -> str:
    if any(step in location for step in _SCALARS):
        return "text on one line, a number, true or false"
    pattern = context.get("pattern")
    words = {
        "string_pattern_mismatch": EXPECTED.get(str(pattern), f"text that matches {pattern}"),
        "literal_error": str(context.get("expected")),
        "union_tag_invalid": f"one of {context.get('expected_tags')}",
        "string_type": "text",
        "int_type": "a whole number",
        "bool_type": "true or false",
        "tuple_type": _LIST,
        "too_long": f"at most {context.get('max_length')} values",
        "mapping_type": _TABLE,
        "dict_type": _TABLE,
        "model_type": _TABLE,
        "model_attributes_type": _TABLE,
        "value_error": str(context.get("error", "")),
    }
    return words.get(kind, "")


def _describe_actual(document: YamlDocument, path: KeyPath, value: Any) -> str:
    """Return a value as written in the file, shortened."""
    place = document.places.get(path)
    source = place.source if place and not isinstance(value, str) else None
    text = source or json.dumps(value, ensure_ascii=False)
    text = text if text.isprintable() else json.dumps(value)  # what a terminal would obey, or not show
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 60
"""Characters of a value in a message: with its path and what was expected, it stays one line of a terminal."""
_SCALARS = ("bool", "int", "float", "str", "constrained-str")
"""What pydantic appends to the path for each alternative of a scalar."""


def _written_path(data: Any, location: tuple[str | int, ...]) -> KeyPath:
    """Remove from pydantic's path what is not in the file: the names of union members and of key checks."""
    path: list[str | int] = []
    for number, step in enumerate(location):
        in_list = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if in_list or (isinstance(data, dict) and step in data):
            data = data[step]
            path.append(step)
        elif isinstance(data, dict) and number == len(location) - 1 and step not in ("[key]", *_SCALARS):
            path.append(step)
    return tuple(path)
