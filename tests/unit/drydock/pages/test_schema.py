"""Records in, committed JSON Schemas out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drydock.core.errors import StaleError
from drydock.pages import schema


def properties(name: str) -> dict[str, dict[str, Any]]:
    document = json.loads(schema.make_schemas()[f"drydock/config/schemas/{name}.schema.json"])
    records = {"": document, **document.get("$defs", {})}
    return {
        f"{record}.{key}": key_schema
        for record, body in records.items()
        for key, key_schema in body.get("properties", {}).items()
    }


@pytest.mark.parametrize("name", ["matrix", "accelerator", "stack", "mirrors"])
def test_every_key_has_a_description(name: str) -> None:
    assert [key for key, key_schema in properties(name).items() if not key_schema.get("description")] == []


def test_an_outdated_schema_is_an_error(tmp_path: Path) -> None:
    assert len(schema.write_schemas(tmp_path)) == len(schema.RECORDS)
    assert schema.write_schemas(tmp_path) == []
    (tmp_path / "drydock" / "config" / "schemas" / "lock.schema.json").write_text("{}")
    with pytest.raises(StaleError, match=r"config/schemas/lock\.schema\.json: does not match") as raised:
        schema.check_schemas(tmp_path)
    assert len(raised.value.problems) == 1
