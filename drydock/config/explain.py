"""Where each value of a row is from: `matrix --explain`. IO (reads).

The files that a row is made of are laid over one another as documents, weakest first, by the one rule of
row_layers.py. The positions that come out are the answer: file, line, and what was replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from drydock.config.accelerator_files import HOST
from drydock.config.project_choice import PROJECT_FILE
from drydock.config.project_layers import merge_layers, read_layers
from drydock.config.row_layers import OF_LISTS, shape_document
from drydock.config.rows import ADDITIONS, VARIANTS, read_rows, with_more_blocks
from drydock.config.stack_files import find_lineage, read_stacks
from drydock.config.stack_layers import Whole, merge_stack_files
from drydock.config.strict_yaml import KeyPath, Position, YamlDocument, locate_problem, read_yaml
from drydock.core.console import as_lines
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.model.variant import Variant

_MANY = ("facts", "findings")
"""Tables of which the text has a line for each file."""
_NO_VALUES = ("schema", "inherits", "accelerator", "retired")
"""Keys that are about the file."""
_OF_FILES = (*_NO_VALUES, "summary")
"""Those of any host's and an accelerator's file; a stack's summary is the image's."""
SHORTENED = 60
"""Characters of a value in the text."""


class WrittenAt(NamedTuple):
    """Where a value is written."""

    layer: str
    """drydock, the name of another project, or empty for the project's own."""
    file: str
    line: int
    value: str
    """The value in short."""

    def __str__(self) -> str:
        return f"{self.layer}{':' if self.layer else ''}{self.file}:{self.line}"


class Origin(NamedTuple):
    """A value of a row, and where it is from."""

    key: str
    value: Any
    place: WrittenAt
    replaced: tuple[WrittenAt, ...] = ()
    """What it stands for, the nearest first."""


class Explained(NamedTuple):
    """A row and where its values are from."""

    id: str
    row: WrittenAt
    inherits: tuple[str, ...]
    """The row that it inherits, and those that this one does."""
    stacks: tuple[str, ...]
    """Its stack's file and those that it inherits from, the nearest first."""
    values: tuple[Origin, ...]


def explain_row(project: Project, variant: Variant) -> Explained:
    """Return where each value of a row is from. Raises InputError."""
    matrix, files = read_rows(project), read_stacks(project)
    line, _ = find_lineage(variant.stack, files)
    row = (VARIANTS, variant.id)
    inherits = matrix.places.get((*row, "inherits"))
    documents = [
        YamlDocument("", {ADDITIONS: {}, OF_LISTS: {}}, {}),
        _read_project_additions(project),
        shape_document(read_layers(project, HOST), (), _OF_FILES) if (project / HOST).is_file() else None,
        shape_document(read_layers(project, f"templates/{variant.accelerator}/accelerator.yaml"), (), _OF_FILES),
        shape_document(merge_stack_files([files[name] for name in reversed(line)]), (), _NO_VALUES),
        shape_document(YamlDocument(matrix.name, {"epoch": matrix.data.get("epoch")}, matrix.places)),
        shape_document(with_more_blocks(matrix), row, _NO_VALUES),
    ]
    whole = merge_layers(entry for entry in documents if entry)
    return Explained(
        variant.id,
        _make_written_at(project, (inherits or matrix.places[row]).within(matrix.name))._replace(value=""),
        tuple(old.value for old in _list_replaced(project, inherits)),
        tuple(project.recorded(files[name].path, ":") for name in line),
        tuple(entry for key in sorted(whole.data) for entry in _list_origins(project, whole, (key,), whole.data[key])),
    )


def _read_project_additions(project: Project) -> YamlDocument | None:
    """Return what every image of the project gets, if it gets anything."""
    path = project.root / PROJECT_FILE
    document = read_yaml(path, PROJECT_FILE) if path.is_file() else None
    added = document.data.get(ADDITIONS) if document else None
    if not (document and added):
        return None
    return shape_document(YamlDocument(PROJECT_FILE, {ADDITIONS: added}, document.places))


# --- what came out --------------------------------------------------------------------------------------------------


def _list_origins(project: Project, whole: YamlDocument, path: KeyPath, value: Any) -> Iterator[Origin]:
    """Yield the values at a path: one, or several if they are from several files."""
    inner = value.value if isinstance(value, Whole) else value
    places = {at: place for at, place in whole.places.items() if at[: len(path)] == path}
    files = {place.file for at, place in places.items() if at != path}
    if isinstance(value, dict) or (len(files) > 1 and isinstance(inner, dict)):
        for key, child in inner.items():
            is_table = isinstance(value, dict)
            yield from _list_origins(project, whole, (*path, key), child if is_table else Whole(child))
    elif len(files) > 1 and isinstance(inner, list):
        for number, child in enumerate(inner):
            yield from _list_origins(project, whole, (*path, number), Whole(child))
    else:
        place = places.get((*path, "value")) or next(at for at in places.values() if at.file in (files or {at.file}))
        key = locate_problem("", path, "")[2:-2]
        yield Origin(key, inner, _make_written_at(project, place, inner), tuple(_list_replaced(project, place.before)))


def _list_replaced(project: Project, before: Position | None) -> Iterator[WrittenAt]:
    while before:
        yield _make_written_at(project, before)
        before = before.before


def _make_written_at(project: Project, place: Position, value: Any = None) -> WrittenAt:
    path = project.root / place.file  # one of a lower layer has an absolute name
    return WrittenAt(
        project.owner_of(path),
        project.name_of(Path(path)),
        place.line,
        place.source or ("" if value is None else _shorten_value(value)),
    )


def _shorten_value(value: Any) -> str:
    """Return a value on one line; of a setting, its value without the reason."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("value", "text", "folder") if key in value), value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHORTENED else f"{text[: SHORTENED - 1]}…"


def format_explained(explained: Sequence[Explained], *, whole: bool) -> str:
    """Return rows as text: each with its values if `whole`, else a line each."""
    if not whole:
        width = max((len(entry.id) for entry in explained), default=0)
        return as_lines(f"{entry.id:{width}}  {entry.row}  {_format_parents(entry)}" for entry in explained)
    return "\n".join(as_lines(_format_explained_row(entry)) for entry in explained)


def _format_parents(explained: Explained) -> str:
    row = f"inherits {' < '.join(explained.inherits)}, " if explained.inherits else ""
    return f"{row}stack {' < '.join(explained.stacks)}"


def _format_explained_row(explained: Explained) -> Iterator[str]:
    yield f"{explained.id}  {explained.row}"
    yield f"  {_format_parents(explained)}"
    origins = [*_group_origins(explained.values)]
    keys, places = (
        max(map(len, texts), default=0)
        for texts in zip(*((origin.key, str(origin.place)) for origin in origins), strict=True)
    )
    for origin in origins:
        yield f"  {origin.key:{keys}}  {origin.place!s:{places}}  {_shorten_value(origin.value)}"
        for old in origin.replaced:
            yield f"  {'':{keys}}  {old!s:{places}}  replaced{f': {_shorten_value(old.value)}' if old.value else ''}"


def _group_origins(values: Iterable[Origin]) -> Iterator[Origin]:
    """Yield values; those of one list, or of one long table, that are from one file as one."""
    for (name, *_), group in groupby(values, lambda origin: (_name_group(origin.key), *origin.place[:2])):
        first, *rest = group
        if rest and name in _MANY:
            yield Origin(f"{name}.…", f"{len(rest) + 1} values", first.place)
        elif rest and first.key.endswith("]"):
            last = rest[-1].key.rpartition("[")[2]
            yield Origin(f"{first.key[:-1]}…{last}", [origin.value for origin in (first, *rest)], first.place)
        else:
            yield from (first, *rest)


def _name_group(key: str) -> str:
    """Return what a key is grouped by: its list, or its long table."""
    table = key.partition(".")[0]
    return table if table in _MANY else key.partition("[")[0]


def format_explained_json(explained: Sequence[Explained], *, whole: bool) -> str:
    """Return rows as JSON: each with its values if `whole`."""
    return format_json({"variants": [_make_explained_record(entry, whole=whole) for entry in explained]})


def _make_explained_record(explained: Explained, *, whole: bool) -> dict[str, Any]:
    values = [
        {
            "key": origin.key,
            "value": origin.value,
            **_make_place_record(origin.place),
            "replaced": [_make_place_record(old, old.value) for old in origin.replaced],
        }
        for origin in explained.values
    ]
    record = {
        "id": explained.id,
        **_make_place_record(explained.row),
        "inherits": list(explained.inherits),
        "stacks": list(explained.stacks),
    }
    return record | ({"values": values} if whole else {})


def _make_place_record(place: WrittenAt, value: str = "") -> dict[str, Any]:
    return {"layer": place.layer, "file": place.file, "line": place.line} | ({"value": value} if value else {})
