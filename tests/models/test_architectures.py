"""Every architecture for text generation that vLLM registers: its configuration is understood, or it says why not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drydock.core.paths import ROOT
from entrypoints.model.config import parse_config
from entrypoints.model.geometry import parse_geometry
from tests.support.planned import configurations

HERE = ROOT / "tests" / "models"
ROWS: dict[str, dict[str, Any]] = json.loads((HERE / "architectures.json").read_text())["architectures"]


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "config" in row and "unknown" not in row])
def test_the_shortest_published_configuration_has_the_sizes_of_its_class(name: str) -> None:
    row = ROWS[name]

    geometry, unknown = parse_geometry(parse_config(row["config"]))

    if unknown:
        assert unknown == row["cache"]
        return
    assert geometry, unknown
    assert (geometry.layers, geometry.heads, geometry.hidden) == (row["layers"], row["heads"], row["hidden"])
    assert geometry.kv_bytes(4096, 2, 1) > 0


def test_most_architectures_are_known_and_each_other_says_why() -> None:
    unknown = {name: row["unknown"] for name, row in ROWS.items() if "unknown" in row}

    assert len(ROWS) > 200
    assert len(unknown) < 0.4 * len(ROWS)
    assert sum("cache" in row for row in ROWS.values()) <= 2
    assert all(unknown.values())
    assert {row["published"] for row in ROWS.values() if "published" in row} <= set(configurations())
