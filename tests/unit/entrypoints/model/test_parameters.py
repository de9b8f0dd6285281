"""Damaged configurations: counted, or refused by key, without a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoints.model.config import parse_config
from entrypoints.model.geometry import parse_geometry
from entrypoints.model.parameters import compute_weight_shares, estimate_weights
from tests.support.planned import configurations

CONFIGS = [body["config"] for body in configurations().values()]
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """Return a real configuration with one to three values replaced, at the top or below."""
    config: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(CONFIGS))))
    for _ in range(draw(st.integers(1, 3))):
        nested = [value for value in config.values() if isinstance(value, dict)]
        table = draw(st.sampled_from([config, *nested]))
        if table:
            table[draw(st.sampled_from(sorted(table)))] = draw(VALUES)
    return config


@settings(max_examples=1500)
@given(damaged())
def test_no_configuration_gives_a_traceback(damage: dict[str, Any]) -> None:
    try:
        config = parse_config(damage)
        geometry, unknown = parse_geometry(config)
        split = compute_weight_shares(config, geometry) if geometry else ()
    except ValueError as problem:
        geometry, unknown = None, str(problem)
    if geometry is None:
        assert unknown
        return
    counted = estimate_weights(config, geometry)

    assert min(counted.elements, counted.other) >= 0
    assert all(0 <= share <= 1 for share in split)
    assert geometry.kv_bytes(1000, 2, 1) >= 0


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("Qwen/Qwen2-72B-Instruct", 145.4), ("deepseek-ai/DeepSeek-R1-0528", 671), ("Qwen/Qwen2.5-0.5B-Instruct", 0.99)],
)
def test_the_manuals_first_models_are_known_with_their_published_size(name: str, gigabytes: float) -> None:
    body = configurations()[name]
    config = parse_config(body["config"])
    geometry, _ = parse_geometry(config)
    assert geometry is not None
    assert estimate_weights(config, geometry).loaded(2) / 1e9 == pytest.approx(gigabytes, rel=0.03)
    assert body["source"]
