"""The files that a row is made of, in a shape that project_layers.py lays over one another. Pure.

One rule for each field, whoever merges: tables key by key, some lists one after the other, checks by their id, and
everything else as a whole. The positions of the values go along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drydock.config.project_layers import MORE, LazyPlaces, merge_layers, move_places
from drydock.config.rows import ADDITIONS
from drydock.config.stack_layers import ADDED, MERGED, Whole, name_layered_key, unwrap_values, wrap_values
from drydock.config.strict_yaml import KeyPath, Position, YamlDocument

TABLES = (*MERGED, "findings", "facts")
"""Fields that are laid over one another key by key."""
LISTS = (*ADDED, "kv_transfer")
"""Fields whose lists follow one another."""
BY_ID = "checks"
"""A list of which each entry has an id, by which a stronger file replaces it."""
OF_LISTS = "variables"
"""A table whose lists follow one another."""
NESTED = (ADDITIONS, "translations")
"""Tables of tables, which are merged at each depth."""


def shape_document(document: YamlDocument, path: KeyPath = (), without: Sequence[str] = ()) -> YamlDocument:
    """Return what a file says at a path, without some fields, in a shape to be laid over weaker files."""
    data: dict[str, Any] = {}
    moves: dict[KeyPath, KeyPath] = {}
    values: Mapping[str, Any] = document.data
    for key in path:
        values = values[str(key)]
    for field, value in values.items():
        at = (*path, field)
        if field in without:
            continue
        if field == BY_ID and isinstance(value, list):
            data[field] = {entry["id"]: Whole(entry) for entry in value}
            moves |= {(*at, number): (field, entry["id"]) for number, entry in enumerate(value)}
        elif field == OF_LISTS:
            names = {key: f"{key}{MORE}" if isinstance(inner, list) else key for key, inner in value.items()}
            data[field] = {names[key]: inner for key, inner in value.items()}
            moves |= {(*at, key): (field, name) for key, name in names.items()}
        else:
            name = name_layered_key(field, value, LISTS)
            data[name] = value if field in NESTED else wrap_values(field, value, TABLES)
            moves[at] = (name,)
    return YamlDocument(document.name, data, LazyPlaces(lambda: _move_all_places(document, path, moves)))


def _move_all_places(
    document: YamlDocument, path: KeyPath, moves: Mapping[KeyPath, KeyPath]
) -> dict[KeyPath, Position]:
    places: dict[KeyPath, Position] = {(): Position(1, 1, None, document.name)}
    for old, new in moves.items():
        moved = move_places(document, old, new)
        if new[0] == BY_ID:  # of another id
            moved = {at: place._replace(before=None) for at, place in moved.items()}
            places[new[:1]] = document.places[*path, BY_ID].within(document.name)
        places |= moved
    return places


def merge_over_host(host: YamlDocument, accelerator: YamlDocument) -> YamlDocument:
    """Return an accelerator's document with what any host has; its own checks come first."""
    empty = YamlDocument("", {OF_LISTS: {}}, {})
    merged = merge_layers([empty, shape_document(host, (), ("retired",)), shape_document(accelerator)])
    data = unwrap_values(merged.data)
    checks = data.get(BY_ID, {})
    own_ids = [entry["id"] for entry in accelerator.data.get(BY_ID, ())]
    ids = [*own_ids, *(number for number in checks if number not in {*own_ids})]

    def move_checks() -> dict[KeyPath, Position]:
        numbers = {number: place for place, number in enumerate(ids)}
        return {
            (BY_ID, numbers[at[1]], *at[2:]) if at[:1] == (BY_ID,) and at[1:] else at: place
            for at, place in merged.places.items()
        }

    data |= {BY_ID: [checks[number] for number in ids], "findings": dict(sorted(data.get("findings", {}).items()))}
    return YamlDocument(accelerator.name, data, LazyPlaces(move_checks))
