"""matrix.yaml of all layers → one document. IO.

A row of a project may inherit a row of drydock: `inherits: drydock/ROW`. It then says only what differs. A row with the
id of one of drydock's rows must inherit that one, so that nothing takes its name by accident.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drydock.config.layers import merged
from drydock.config.strict_yaml import YamlDocument, read_yaml
from drydock.config.validation import Problem, failure
from drydock.core.errors import nearest
from drydock.core.project import BELOW, Project

MATRIX = "matrix.yaml"
VARIANTS = "variants"
_ONE_OWNER = ("aliases", "default", "cards")
"""Keys that one row alone may have: a row of another id does not inherit them."""


def read_rows(project: Project) -> YamlDocument:
    """Return the rows of all layers. Raises InputError."""
    paths = project.each(MATRIX) or [project / MATRIX]
    below, *others = (read_yaml(path, project.shown(path)) for path in paths)
    if problems := [*_check(YamlDocument("", {}, {}), below)]:
        raise failure(problems)
    for above in others:
        problems = [*_check(below, above)]
        if problems:
            raise failure(problems)
        below = merged((_with_parents(below, above), above))
    return below


def own_rows(project: Project) -> set[str]:
    """Return the rows of a project's own matrix.yaml. Raises InputError."""
    path = project.root / MATRIX
    return {*_rows(read_yaml(path, MATRIX))} if path.is_file() else set()


def _rows(document: YamlDocument) -> dict[str, Any]:
    rows = document.data.get(VARIANTS) if isinstance(document.data, dict) else None
    return {name: row for name, row in rows.items() if isinstance(row, dict)} if isinstance(rows, dict) else {}


def _retired(document: YamlDocument) -> dict[str, str]:
    """Return the ids of rows that are gone, with the row that replaces each."""
    found = document.data.get("retired") if isinstance(document.data, dict) else None
    return {str(old): str(new) for old, new in found.items()} if isinstance(found, dict) else {}


def _check(below: YamlDocument, above: YamlDocument) -> Iterator[Problem]:
    known = _rows(below)
    aliases = {str(alias): name for name, row in known.items() for alias in row.get("aliases") or ()}
    for name, row in _rows(above).items():
        parent = str(row.get("inherits", ""))
        if parent and (not parent.startswith(BELOW) or parent.removeprefix(BELOW) not in known):
            instead = _retired(below).get(parent.removeprefix(BELOW))
            what = f"drydock retired the row {parent!r}" if instead else f"unknown row {parent!r}"
            hint = f"write `inherits: {BELOW}{instead}`, which replaces it" if instead else ""
            named = [f"{BELOW}{each}" for each in known]
            yield above.problem((VARIANTS, name, "inherits"), what), hint or nearest(parent, named)
        elif name in known and parent != f"{BELOW}{name}":
            hint = f"choose another id, or write `inherits: {BELOW}{name}` to change that row"
            yield above.problem((VARIANTS, name), f"drydock has a row {name!r}"), hint
        elif name in aliases:
            text = f"drydock has an alias {name!r} of the row {aliases[name]!r}"
            yield above.problem((VARIANTS, name), text), "choose another id"


def _with_parents(below: YamlDocument, above: YamlDocument) -> YamlDocument:
    """Return the lower document with a copy of each row that a row of another id inherits, under that id."""
    rows, places = dict(_rows(below)), dict(below.places)
    for name, row in _rows(above).items():
        parent = str(row.get("inherits", "")).removeprefix(BELOW)
        if parent and parent != name:
            rows[name] = {key: value for key, value in rows[parent].items() if key not in _ONE_OWNER}
            old, new = (VARIANTS, parent), (VARIANTS, name)
            places |= {(*new, *path[2:]): place for path, place in below.places.items() if path[:2] == old}
    return YamlDocument(below.name, {**below.data, VARIANTS: rows}, places)
