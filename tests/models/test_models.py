"""Real models: what is read of their configurations, and what is decided for them."""

from __future__ import annotations

from collections import Counter

import pytest

from entrypoints.core.errors import EntrypointError
from entrypoints.model.config import parse_config
from entrypoints.model.geometry import parse_geometry
from entrypoints.model.parameters import estimate_weights
from tests.evidence import decisions, published
from tests.support import machines, planned
from tests.support.planned import configurations

BODIES = configurations()
COUNTED = [name for name, body in BODIES.items() if body["parameters"]]
WITHIN = 0.03
AGREEING = 0.85
"""Least share of the published recommendations that decisions agree with; each of the others is argued."""


@pytest.mark.parametrize("name", BODIES)
def test_every_configuration_is_understood_and_has_a_source(name: str) -> None:
    body = BODIES[name]
    geometry, unknown = parse_geometry(parse_config(body["config"]))

    assert geometry, unknown
    assert geometry.vocabulary
    assert geometry.hidden
    assert body["source"]


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_estimated_within_three_hundredths(name: str) -> None:
    body = BODIES[name]
    config = parse_config(body["config"])
    geometry, _ = parse_geometry(config)
    assert geometry
    counted = estimate_weights(config, geometry)

    assert counted.other == 0
    assert abs(counted.elements / body["parameters"] - 1) < WITHIN


def test_there_are_forty_models() -> None:
    assert len(BODIES) >= 40
    assert len(COUNTED) >= 12


def test_the_shown_models_are_known() -> None:
    assert set(decisions.SHOWN) <= set(decisions.models())


# --- published recommendations --------------------------------------------------------------------------------------

RECORDS = published.records()


def test_every_recommendation_names_a_known_machine_a_known_model_and_its_source() -> None:
    assert {record.device for record in RECORDS} <= set(machines.KINDS)
    assert {record.model for record in RECORDS} <= set(decisions.models())
    assert all(record.says and record.source for record in RECORDS)
    assert [f"{record.title} on {record.on}" for record in RECORDS if not uses_the_devices(record)] == []


def uses_the_devices(record: published.Record) -> bool:
    """Tell whether a recommendation's ranks are at most the devices of its machine: not all cores of a chip serve."""
    there = machines.machine(record.device, record.devices).facts
    ranks = sum(device.cores for device in there.devices) or len(there.nodes)
    return record.tensor * record.pipeline * record.data <= ranks * record.hosts


def test_a_recommendation_stands_once() -> None:
    questions = [(record.title, record.on, record.asked, record.short, record.source) for record in RECORDS]

    assert [item for item, count in Counter(questions).items() if count > 1] == []


def test_most_recommendations_agree() -> None:
    assert published.share(published.comparisons()) >= AGREEING, published.disagreements()


def test_a_recipe_changes_no_placement_of_a_published_recommendation() -> None:
    """A recipe names a size for all devices at most, and what does not fit of it is left out."""
    recommendations = {(record.model, record.on): record for record in RECORDS if record.hosts == 1}
    differing = [
        name for name, record in recommendations.items() if spread_of(record, recipes=True) != spread_of(record)
    ]
    assert differing == []


def spread_of(record: published.Record, *, recipes: bool = False) -> planned.Spread | None:
    """Return how a plan spreads the model of a recommendation; None if it is refused."""
    machine = machines.machine(record.device, record.devices, record.target)
    try:
        plan = planned.plan_with_recipe(machine, planned.models()[record.model], recipes=recipes)
    except EntrypointError:
        return None
    return planned.spread(plan)._replace(length="", because="")


def test_every_disagreement_with_a_published_recommendation_is_explained() -> None:
    differing = [item.record for item in published.comparisons() if not item.agrees]

    assert [f"{record.title} on {record.on}: {record.short}" for record in differing if not record.differs] == []


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
    features = (geometry.cacheless, geometry.sliding_layers, geometry.experts, geometry.latent)
    assert features == (cacheless, sliding, experts, latent)


def test_modalities_are_named() -> None:
    known_models = decisions.models()

    assert known_models["Qwen/Qwen2.5-Omni-7B"].modalities == ("image", "audio")
    assert known_models["Qwen/Qwen2.5-VL-7B-Instruct"].modalities == ("image",)
    assert known_models["Qwen/Qwen3-8B"].modalities == ()
