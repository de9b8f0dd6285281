"""YAML files of several layers → one document. Pure, except read_contents and read_layers.

One rule: a key of a higher layer wins over the same key below. Two tables are merged key by key; anything else is
replaced; and a list whose key ends with `+` is added to the list below.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

from drydock.config.strict_yaml import KeyPath, Position, YamlDocument, read_yaml
from drydock.core.project import Project

MORE = "+"
"""End of a key whose list is added to the list of the lower layers."""


Contents = tuple[tuple[Path, bytes], ...]
"""Files and what is in them: what was made of them holds as long as they are the same."""


def read_contents(project: Project, names: Sequence[str]) -> Contents:
    """Read the files of every layer that patterns name, as a key for what is made of them."""
    paths = sorted(path for layer in project.layers for name in names for path in layer.glob(name) if path.is_file())
    return tuple((path, path.read_bytes()) for path in paths)


def read_layers(project: Project, name: str) -> YamlDocument:
    """Read a file of every layer that has it, as one document. Raises InputError, also if no layer has it."""
    paths = project.list_layer_files(name) or [project / name]
    return merge_layers(read_yaml(path, project.shown(path)) for path in paths)


def merge_layers(lowest_first: Iterable[YamlDocument]) -> YamlDocument:
    """Return one document; each value has the position and the file where it was written."""
    return reduce(_lay_over, lowest_first)


class _Changes(NamedTuple):
    """What a document changes in the one below, so that all positions are taken in one pass."""

    replaced: set[KeyPath]
    """Keys whose values it replaces."""
    added: dict[KeyPath, tuple[KeyPath, int]]
    """Key of a list that is added → the key of the list below, and the number of its first entry there."""


def _lay_over(below: YamlDocument, above: YamlDocument) -> YamlDocument:
    """Lay a document over another."""
    if not (isinstance(below.data, dict) and isinstance(above.data, dict)):
        return above
    changes = _Changes(set(), {})
    data = _merge_tables(below.data, above.data, (), changes)

    def compute_places() -> dict[KeyPath, Position]:
        below_places = {path: place.within(below.name) for path, place in below.places.items()}
        return _merge_places(below_places, above.places, changes)

    return YamlDocument(above.name, data, LazyPlaces(compute_places))


class LazyPlaces(Mapping[KeyPath, Position]):
    """Positions that are computed when one is asked for: few commands report any."""

    def __init__(self, compute: Callable[[], dict[KeyPath, Position]]) -> None:
        self._compute = compute

    @cached_property
    def _all(self) -> dict[KeyPath, Position]:
        return self._compute()

    def __getitem__(self, path: KeyPath) -> Position:
        return self._all[path]

    def __iter__(self) -> Iterator[KeyPath]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def _merge_tables(
    below: Mapping[str, Any], above: Mapping[str, Any], path: KeyPath, changes: _Changes
) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        name, more = key.removesuffix(MORE), key.endswith(MORE)
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and not more:
            result[name] = _merge_tables(old, value, (*path, name), changes)
        elif more and isinstance(value, list) and isinstance(old, list | None):
            result[name] = [*(old or ()), *value]
            changes.added[*path, key] = ((*path, name), len(old or ()))
        else:
            result[key] = value
            changes.replaced.add((*path, key))
    return result


def _merge_places(
    below: dict[KeyPath, Position], above: Mapping[KeyPath, Position], changes: _Changes
) -> dict[KeyPath, Position]:
    """Return the position of each value. One that is replaced, or is below such a value, is known as the one before."""
    old = {path: place for path, place in below.items() if _find_holder(path, changes.replaced) is not None}
    places = {path: place for path, place in below.items() if path not in old}
    for path, place in above.items():
        if _find_holder(path, changes.replaced) is not None:
            places[path] = _append_before(place, old[path]) if path in old else place
        elif (added_key := _find_holder(path, changes.added)) is not None:
            name, first = changes.added[added_key]
            if path == added_key:
                places.setdefault(name, place)
            elif isinstance(number := path[len(added_key)], int):
                places[*name, first + number, *path[len(added_key) + 1 :]] = place
    return places


def _append_before(place: Position, oldest: Position) -> Position:
    """Return a place that replaces another one after those that it replaces already."""
    return place._replace(before=_append_before(place.before, oldest) if place.before else oldest)


def move_places(document: YamlDocument, old: KeyPath, new: KeyPath) -> dict[KeyPath, Position]:
    """Return the places of a value under another path, each with its file."""
    return {
        (*new, *path[len(old) :]): place.within(document.name)
        for path, place in document.places.items()
        if path[: len(old)] == old
    }


def _find_holder(path: KeyPath, paths: Container[KeyPath]) -> KeyPath | None:
    """Return the first of a path's beginnings that is one of `paths`."""
    return next((path[:end] for end in range(len(path) + 1) if path[:end] in paths), None)
