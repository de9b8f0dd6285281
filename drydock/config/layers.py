"""YAML files of several layers → one document. Pure, except read_layers.

One rule: a key of a higher layer wins over the same key below. Two tables are merged key by key; anything else is
replaced; and a list whose key ends with `+` is added to the list below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from drydock.config.strict_yaml import KeyPath, Position, YamlDocument, read_yaml
from drydock.core.project import Project

MORE = "+"
"""End of a key whose list is added to the list of the lower layers."""


def read_layers(project: Project, name: str) -> YamlDocument:
    """Read a file of every layer that has it, as one document. Raises InputError, also if no layer has it."""
    found = project.each(name) or [project / name]
    return merged(read_yaml(path, project.shown(path)) for path in found)


def merged(lowest_first: Iterable[YamlDocument]) -> YamlDocument:
    """Return one document; each value has the position and the file where it was written."""
    return reduce(_over, lowest_first)


def _over(below: YamlDocument, above: YamlDocument) -> YamlDocument:
    """Lay a document over another."""
    if not (isinstance(below.data, dict) and isinstance(above.data, dict)):
        return above
    places = {path: place.within(below.name) for path, place in below.places.items()}
    data = _tables(below.data, above.data, above, (), places)
    return YamlDocument(above.name, data, places)


def _tables(
    below: Mapping[str, Any],
    above: Mapping[str, Any],
    document: YamlDocument,
    path: KeyPath,
    places: dict[KeyPath, Position],
) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        name, more = key.removesuffix(MORE), key.endswith(MORE)
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and not more:
            result[name] = _tables(old, value, document, (*path, name), places)
        elif more and isinstance(value, list) and isinstance(old, list | None):
            result[name] = [*(old or ()), *value]
            _move(document, (*path, key), (*path, name), len(old or ()), places)
        else:
            result[key] = value
            _replace(document, (*path, key), places)
    return result


def _replace(document: YamlDocument, path: KeyPath, places: dict[KeyPath, Position]) -> None:
    """Take the positions of a value, and below it, from a document."""
    old = {each: places.pop(each) for each in [*places] if each[: len(path)] == path}
    places |= {
        each: place._replace(before=old.get(each, place.before))
        for each, place in document.places.items()
        if each[: len(path)] == path
    }


def _move(document: YamlDocument, written: KeyPath, path: KeyPath, first: int, places: dict[KeyPath, Position]) -> None:
    """Take the positions of entries that are added to a list, whose first one has a number now."""
    size = len(written)
    places.setdefault(path, document.places[written])
    for each, place in document.places.items():
        if each[:size] == written and len(each) > size and isinstance(each[size], int):
            places[(*path, first + int(each[size]), *each[size + 1 :])] = place
