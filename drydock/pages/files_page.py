"""JSON Schemas → docs/reference/files.md: each file that people or tools read, with its keys. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from drydock.pages.markdown import make_table
from drydock.pages.schema import FOLDER, make_schemas

_HEAD = """# Files

    ./inv matrix --explain --target gaudi2      # each value of a row, and the file it is from

The files that people write and tools read, each with its JSON Schema, which editors can complete and check by. A wrong
key is an error with its place and the nearest right one. `KEY+` adds to a list of a lower layer. `nodes[].name` is
a key of each record in the list `nodes`, `variants.*.stack` of each in the map `variants`.
Written by `./inv docs` from the schemas.
"""
PAGES = {
    "project": "../project.md",
    "matrix": "../build.md",
    "accelerator": "../develop/add-an-accelerator.md",
    "stack": "../develop/add-an-accelerator.md",
    "host": "findings.md",
    "mirrors": "../lock.md#mirrors",
    "lock": "../lock.md",
    "record": "images.md",
    "profile": "../run.md#the-entrypoint-without-an-image",
    "bundle": "../bundle.md",
    "topology": "../topology.md",
}
"""Schema → the page that explains the file; in this order."""
DEEP = ("project", "matrix", "lock", "record", "bundle", "topology")
"""Files whose records are listed too; the records of others are many, and explained by their schema."""

_KINDS = {"object": "map", "array": "list", "string": "text"}


def render_files_page() -> str:
    """Return the page."""
    texts = {name: json.loads(make_schemas()[f"{FOLDER}/{name}.schema.json"]) for name in PAGES}
    return _HEAD + "".join(_render_file_section(name, schema) for name, schema in texts.items())


def _render_file_section(name: str, schema: Mapping[str, Any]) -> str:
    path, _, about = schema["description"].partition(": ")
    links = f"[Explained here]({PAGES[name]}); [schema](../../{FOLDER}/{name}.schema.json)."
    keys = make_table(
        ("key", "kind", "default", "meaning"), _list_key_rows(schema, schema.get("$defs", {}), deep=name in DEEP)
    )
    return f"\n## `{path}`\n\n{about[:1].upper()}{about[1:]}\n{links}\n\n{keys}"


def _list_key_rows(
    record: Mapping[str, Any], records: Mapping[str, Any], before: str = "", *, deep: bool
) -> Iterator[tuple[str, ...]]:
    properties = {key: value for key, value in record["properties"].items() if not key.endswith("+")}
    for key, value in properties.items():
        default = "required" if key in record.get("required", ()) else _format_default(value.get("default"))
        inner = records.get(_find_record_name(value), {})
        meaning = value.get("description", inner.get("description", ""))
        yield f"`{before}{key}`", _describe_kind(value), default, meaning.replace("<", "&lt;")
        if deep and "properties" in inner:
            among = {"array": "[]", "object": ".*"}.get(value.get("type", ""), "")
            yield from _list_key_rows(inner, records, f"{key}{among}.", deep=False)


def _format_default(value: object) -> str:
    return f"`{json.dumps(value)}`" if value and not isinstance(value, dict) else ""


def _find_record_name(value: Mapping[str, Any]) -> str:
    """Return the name of the record that a value is, or has in a list or map; empty if there is none."""
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    parts = (*value.get("anyOf", ()), *value.get("patternProperties", {}).values())
    more = (part for key in ("items", "additionalProperties") if isinstance(part := value.get(key), dict))
    return next(filter(None, map(_find_record_name, (*parts, *more))), "")


def _describe_kind(value: Mapping[str, Any]) -> str:
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return " or ".join(f"`{word}`" for word in value["enum"])
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_describe_kind(part) for part in value["anyOf"] if part.get("type") != "null"))
    kind = str(value.get("type", "object"))
    return _KINDS.get(kind, kind)
