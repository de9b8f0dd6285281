"""matrix.yaml of all layers → one document. IO.

A row may inherit a row of a lower layer: `inherits: drydock/ROW`, or the name of another project and ROW. It then says
only what differs. A row with the id of one of a lower layer must inherit that one, so that nothing takes its name by
accident.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from drydock.config.project_choice import PROJECT_FILE
from drydock.config.project_layers import MORE, merge_layers, move_places
from drydock.config.strict_yaml import KeyPath, Position, YamlDocument, read_yaml
from drydock.config.validation import Problem, combine_problems
from drydock.core.files import has_file
from drydock.core.project import LOWEST, Project

MATRIX = "matrix.yaml"
VARIANTS = "variants"
ADDITIONS = "additions"
BLOCKS = "dockerfile"
_ONE_OWNER = ("aliases", "default", "cards")
"""Keys that one row alone may have: a row of another id does not inherit them."""
_OWNED = {(key,) for key in _ONE_OWNER}
Known = Mapping[str, YamlDocument]
"""LAYER/ROW, for each row that a lower layer writes → the document of all layers up to that one."""


def read_rows(project: Project) -> YamlDocument:
    """Return the rows of all layers. Raises InputError."""
    document: YamlDocument | None = None
    lower_rows: dict[str, YamlDocument] = {}
    for layer, root in project.named.items():
        path = root / MATRIX
        if not has_file(path):
            continue
        above = read_yaml(path, project.shown(path))
        if problems := [*_check_parents(lower_rows, above)]:
            raise combine_problems(problems)
        row_names = {*list_rows(above)}
        if layer not in ("", LOWEST):
            above = _with_additions(project, layer, above)
        document = merge_layers((_with_parents(lower_rows, document, above), above)) if document else above
        lower_rows |= {f"{layer}/{name}": document for name in row_names}
    return document or read_yaml(project / MATRIX, MATRIX)


def own_rows(project: Project) -> set[str]:
    """Return the rows of a project's own matrix.yaml, and of those of others. Raises InputError."""
    paths = [root / MATRIX for name, root in project.named.items() if name != LOWEST]
    return {name for path in paths if has_file(path) for name in list_rows(read_yaml(path, project.shown(path)))}


def list_rows(document: YamlDocument) -> dict[str, Any]:
    """Return the rows of a document, by id; none for a document of another shape."""
    table = document.data.get(VARIANTS) if isinstance(document.data, dict) else None
    return {name: row for name, row in table.items() if isinstance(row, dict)} if isinstance(table, dict) else {}


def _list_retired(lower_rows: Known) -> dict[str, str]:
    """Return the rows that are gone of each layer, with the row that replaces each."""
    retired: dict[str, str] = {}
    for layer, document in {full.partition("/")[0]: document for full, document in lower_rows.items()}.items():
        replacements = document.data.get("retired")
        retired |= (
            {f"{layer}/{old}": f"{layer}/{new}" for old, new in replacements.items()}
            if isinstance(replacements, dict)
            else {}
        )
    return retired


def _check_parents(lower_rows: Known, above: YamlDocument) -> Iterator[Problem]:
    owners = {name.partition("/")[2]: name.partition("/")[0] for name in lower_rows}
    aliases = {
        str(alias): (layer, name)
        for name, layer in owners.items()
        for alias in _read_row_value(lower_rows, f"{layer}/{name}", "aliases")
    }
    for name, row in list_rows(above).items():
        parent = str(row.get("inherits", ""))
        if parent and parent not in lower_rows:
            old, instead = next(_find_replacements(parent, lower_rows), ("", ""))
            what = f"{old.partition('/')[0]} retired the row {old!r}" if instead else f"unknown row {parent!r}"
            hint = (
                f"write `inherits: {instead}`, which replaces it"
                if instead
                else _hint_parent(parent, lower_rows, above)
            )
            yield above.problem((VARIANTS, name, "inherits"), what), hint
        elif name in owners and parent != f"{owners[name]}/{name}":
            hint = f"choose another id, or write `inherits: {owners[name]}/{name}` to change that row"
            yield above.problem((VARIANTS, name), f"{owners[name]} has a row {name!r}"), hint
        elif name in aliases:
            layer, alias_owner = aliases[name]
            yield (
                above.problem((VARIANTS, name), f"{layer} has an alias {name!r} of the row {alias_owner!r}"),
                "choose another id",
            )


def _find_replacements(parent: str, lower_rows: Known) -> Iterator[tuple[str, str]]:
    """Yield the retired rows that a name means, with or without the layer's name, and what replaces each."""
    return (pair for pair in _list_retired(lower_rows).items() if parent in (pair[0], pair[0].partition("/")[2]))


def _hint_parent(parent: str, lower_rows: Known, above: YamlDocument) -> str:
    """Return what to write for a row that no lower layer has."""
    name = parent.rpartition("/")[2]
    full_names = {full.partition("/")[2]: full for full in lower_rows}
    aliases = {str(alias): full for full in lower_rows for alias in _read_row_value(lower_rows, full, "aliases")}
    if full := full_names.get(name) or aliases.get(name):
        return f"write `inherits: {full}`"
    if name in list_rows(above):
        return f"a row inherits one of a lower layer, and {name} is in this file; what both share belongs in a stack"
    if close := difflib.get_close_matches(name, full_names, n=1):
        return f"did you mean `inherits: {full_names[close[0]]}`?"
    return "write `inherits: drydock/ROW`; `./inv matrix` outside of this project lists drydock's rows"


def _read_row_value(lower_rows: Known, full: str, key: str) -> Any:
    """Return what a row of a layer says by a key, or an empty list."""
    return list_rows(lower_rows[full])[full.partition("/")[2]].get(key) or ()


def _with_parents(lower_rows: Known, below: YamlDocument, above: YamlDocument) -> YamlDocument:
    """Return the lower document with a copy of each row that a row of another id inherits, under that id."""
    all_rows, places = dict(list_rows(below)), dict(below.places)
    heirs: dict[str, dict[str, list[str]]] = {}
    for name, row in list_rows(above).items():
        layer, _, parent = str(row.get("inherits", "")).rpartition("/")
        if parent and parent != name:
            heirs.setdefault(layer, {}).setdefault(parent, []).append(name)
            inherited = list_rows(lower_rows[f"{layer}/{parent}"])[parent]
            all_rows[name] = {key: value for key, value in inherited.items() if key not in _ONE_OWNER}
    for layer, of in heirs.items():
        source = lower_rows[f"{layer}/{next(iter(of))}"]
        for path, place in source.places.items():
            for name in of.get(str(path[1]), ()) if path[:1] == (VARIANTS,) and len(path) > 1 else ():
                if path[2:3] not in _OWNED:
                    places[VARIANTS, name, *path[2:]] = place.within(source.name)
    return YamlDocument(below.name, {**below.data, VARIANTS: all_rows}, places)


def _with_additions(project: Project, layer: str, above: YamlDocument) -> YamlDocument:
    """Return the rows of another project, each with what all images of that project get."""
    path = project.named[layer] / PROJECT_FILE
    settings = read_yaml(path, project.shown(path))
    added = settings.data.get(ADDITIONS) if isinstance(settings.data, dict) else None
    if not added:
        return above
    places: dict[KeyPath, Position] = {}
    for name in list_rows(above):
        places |= move_places(settings, (ADDITIONS,), (VARIANTS, name, ADDITIONS))
    common = YamlDocument(settings.name, {VARIANTS: {name: {ADDITIONS: added} for name in list_rows(above)}}, places)
    return merge_layers((common, with_more_blocks(above)))


def with_more_blocks(document: YamlDocument) -> YamlDocument:
    """Return rows whose lines of a Dockerfile follow those of the project, as in that project itself."""
    all_rows, places = list_rows(document), dict(document.places)
    for name, row in all_rows.items():
        added = row.get(ADDITIONS)
        if isinstance(added, dict) and isinstance(added.get(BLOCKS), list):
            more = {f"{key}{MORE}" if key == BLOCKS else key: value for key, value in added.items()}
            all_rows[name] = {**row, ADDITIONS: more}
            old = (VARIANTS, name, ADDITIONS, BLOCKS)
            places |= move_places(document, old, (*old[:-1], f"{BLOCKS}{MORE}"))
    return YamlDocument(document.name, {**document.data, VARIANTS: all_rows}, places)
