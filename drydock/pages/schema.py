"""Records → JSON Schemas, committed in drydock/config/schemas/ for editors and other tools."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from drydock.bundle.bundle_records import Bundle
from drydock.config.mirrors import Mirrors
from drydock.core.errors import StaleError
from drydock.core.files import format_json, write_atomically
from drydock.lock.image_record import ImageRecord
from drydock.model.checks import AnyHost, Failures
from drydock.model.locked import Lock
from drydock.model.project_record import ProjectFile
from drydock.model.record import Record
from drydock.model.topology_findings import TopologyFindings
from drydock.model.variant import Accelerator, Matrix, Profile, Stack
from drydock.topology.topology_records import Topology

RECORDS: dict[str, type[Record]] = {
    "accelerator": Accelerator,
    "bundle": Bundle,
    "failures": Failures,
    "topology_findings": TopologyFindings,
    "host": AnyHost,
    "lock": Lock,
    "matrix": Matrix,
    "mirrors": Mirrors,
    "profile": Profile,
    "project": ProjectFile,
    "record": ImageRecord,
    "stack": Stack,
    "topology": Topology,
}
FOLDER = "drydock/config/schemas"
"""Below the repository's root."""

_LAYERED = ("accelerator", "host", "matrix", "stack")
"""Files of which a project's has only what differs: no key is required, and `KEY+` adds to a list."""


def make_schemas() -> dict[str, str]:
    """Return the schema of each file that people or tools read, by its path below the repository's root."""
    schemas = {name: _make_schema(record) for name, record in RECORDS.items()}
    schemas |= {name: _make_partial_schema(schemas[name]) for name in _LAYERED}
    return {f"{FOLDER}/{name}.schema.json": format_json(text) for name, text in schemas.items()}


def _make_partial_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a file that may leave keys to what it inherits, or to lower layers."""
    lists = {f"{key}+": kind for key, kind in schema["properties"].items() if kind.get("type") == "array"}
    row = schema.get("$defs", {}).get("MatrixRow", {})
    definitions = {**schema.get("$defs", {}), **({"MatrixRow": {**row, "required": []}} if row else {})}
    return {**schema, "properties": {**schema["properties"], **lists}, "required": [], "$defs": definitions}


def write_schemas(root: Path) -> list[Path]:
    """Write the schemas; return those that changed."""
    return [root / name for name, text in make_schemas().items() if write_atomically(root / name, text)]


def check_schemas(root: Path) -> None:
    """Compare the committed schemas with the records. Raises StaleError."""
    stale = [name for name, text in make_schemas().items() if not _is_same_text(root / name, text)]
    if stale:
        raise StaleError(
            *(f"{name}: does not match drydock/model/variant.py" for name in stale), hint="run `./inv schema`"
        )


class Described(GenerateJsonSchema):
    """Uses the docstrings below fields as their descriptions.

    pydantic's use_attribute_docstrings does the same, but reads the sources whenever a record is imported, which costs
    every task a tenth of a second.
    """

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return a record's schema."""
        json_schema = super().model_schema(schema)
        record: type[BaseModel] = schema["cls"]
        for name, text in read_descriptions(record).items():
            field = json_schema["properties"].get(record.model_fields[name].alias or name)
            if field is not None:
                field.setdefault("description", text)
        return json_schema


def read_descriptions(record: type[BaseModel]) -> dict[str, str]:
    """Return the texts below a record's fields, its own and those that it inherits."""
    classes = [record_class for record_class in reversed(record.__mro__) if issubclass(record_class, Record)]
    texts = {
        name: text
        for record_class in classes
        for name, text in _module_texts(record_class.__module__)[record_class.__name__].items()
    }
    return {name: text for name, text in texts.items() if name in record.model_fields}


@functools.cache
def _module_texts(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_list_field_texts(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _list_field_texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(node.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, inspect.cleandoc(words)


def _make_schema(record: type[Record]) -> dict[str, Any]:
    json_schema = record.model_json_schema(mode="validation", schema_generator=Described)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **json_schema}


def _is_same_text(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text
