"""Real models: what is read of their configurations, and what is decided for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.model.config import parse_config
from entrypoints.model.geometry import parse_geometry
from entrypoints.model.parameters import estimate
from tests.support import decisions

FILES = sorted((decisions.HERE / "configs").glob("*.json"))
COUNTED = [path for path in FILES if json.loads(path.read_text())["parameters"]]
WITHIN = 0.03


def named(path: Path) -> str:
    return path.stem.replace("--", "/")


@pytest.mark.parametrize("path", FILES, ids=named)
def test_every_configuration_is_understood_and_has_a_source(path: Path) -> None:
    body = json.loads(path.read_text())
    geometry, unknown = parse_geometry(parse_config(body["config"]))

    assert geometry, unknown
    assert geometry.vocabulary
    assert geometry.hidden
    assert body["source"]


@pytest.mark.parametrize("path", COUNTED, ids=named)
def test_parameters_are_estimated_within_three_hundredths(path: Path) -> None:
    body = json.loads(path.read_text())
    config = parse_config(body["config"])
    geometry, _ = parse_geometry(config)
    assert geometry
    counted = estimate(config, geometry)

    assert counted.other == 0
    assert abs(counted.elements / body["parameters"] - 1) < WITHIN


def test_there_are_forty_models() -> None:
    assert len(FILES) >= 40
    assert len(COUNTED) >= 12


@pytest.mark.golden
def test_the_page_is_what_is_decided() -> None:
    assert (decisions.HERE / "decisions.md").read_text() == decisions.page(), "read the difference, then run decide.py"


def test_every_disagreement_with_a_published_recommendation_is_explained() -> None:
    compared = decisions.comparisons()

    assert [item.model for item in compared if not item.agrees and not item.differs] == []
    assert sum(item.agrees for item in compared) >= 17


@pytest.mark.parametrize(
    ("name", "cacheless", "sliding", "experts", "latent"),
    [
        ("ai21labs/Jamba-v0.1", 28, 0, 16, 0),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 36, 0, 512, 0),
        ("nvidia/Nemotron-H-56B-Base-8K", 108, 0, 0, 0),
        ("google/gemma-3-27b-it", 0, 52, 0, 0),
        ("openai/gpt-oss-20b", 0, 12, 32, 0),
        ("deepseek-ai/DeepSeek-R1", 0, 0, 256, 576),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 0, 0, 16, 0),
    ],
)
def test_what_is_special_of_a_family_is_seen(
    name: str, cacheless: int, sliding: int, experts: int, latent: int
) -> None:
    geometry = decisions.models()[name].geometry

    assert geometry
    found = (geometry.cacheless, geometry.sliding_layers, geometry.experts, geometry.latent)
    assert found == (cacheless, sliding, experts, latent)


def test_modalities_are_named() -> None:
    known = decisions.models()

    assert known["Qwen/Qwen2.5-Omni-7B"].modalities == ("image", "audio")
    assert known["Qwen/Qwen2.5-VL-7B-Instruct"].modalities == ("image",)
    assert known["Qwen/Qwen3-8B"].modalities == ()
