"""Weights in memory are not weights on disk."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.core.records import Memory, Use
from entrypoints.decide.parallelism.fit import fit_model
from entrypoints.decide.parallelism.loading import as_loaded, find_host_weights, find_loading_notices
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from tests.support.fit_hosts import GIB, RULES, host, said

NUMBERS = 70 * 10**9
SHAPE = Geometry(80, 0, 0, 64, 8, 128, 0, 8192, 0, 8192, 128256, 28672)
PLAIN = ModelFacts("m", True, "", "", Weights(2 * NUMBERS, NUMBERS, 0), SHAPE, "", linear_share=0.97)
SPARSE = PLAIN._replace(expert_share=0.9)
PACKED = ModelFacts("m", True, "", "mxfp4", Weights(60 * GIB, 10**9, 58 * GIB), SHAPE, "", expert_share=0.96)


def thresholds(**values: Any) -> dict[str, dict[str, Any]]:
    plain = {"quantized_at_load": ["fp8 8", "experts_int8 8 experts"], "dequantized_at_load": ["mxfp4 4.25 16"]}
    return {name: {"value": value} for name, value in {**plain, **values}.items()}


def test_linear_layers_take_a_byte_and_the_embeddings_stay() -> None:
    loaded = as_loaded(thresholds(), PLAIN, said("--quantization", "fp8"))

    assert loaded.weights
    assert loaded.weights.loaded(2) == pytest.approx(NUMBERS * (0.97 + 0.03 * 2))
    assert loaded.weights.on_disk == 2 * NUMBERS
    assert loaded.weights.peak(2) == loaded.weights.loaded(2)


def test_of_experts_only_experts_are_quantised() -> None:
    loaded = as_loaded(thresholds(), SPARSE, said("-q", "experts_int8"))

    assert loaded.weights
    assert loaded.weights.loaded(2) == pytest.approx(NUMBERS * (0.9 + 0.1 * 2))
    assert loaded.expert_share == pytest.approx(0.9 / 1.1)


def test_a_platform_without_kernels_unpacks_to_the_servers_type() -> None:
    loaded = as_loaded(thresholds(), PACKED, said())

    assert loaded.weights
    assert loaded.weights.other == 0
    assert loaded.weights.loaded(2) == pytest.approx(58 * GIB * 16 / 4.25 + 2 * 10**9)
    assert [notice.id for notice in find_loading_notices(thresholds(), PACKED, said(), loaded)] == ["PLAN-112"]


def test_nothing_changes_without_a_method_or_for_a_model_that_is_quantised_already() -> None:
    assert as_loaded(thresholds(), PLAIN, said()) is PLAIN
    assert as_loaded(thresholds(dequantized_at_load=[]), PACKED, said("-q", "fp8")) == PACKED


def test_a_method_of_unknown_size_counts_unquantised_and_says_so() -> None:
    user_flags = said("--quantization", "torchao")
    loaded = as_loaded(thresholds(), PLAIN, user_flags)

    assert loaded is PLAIN
    assert [notice.id for notice in find_loading_notices(thresholds(), PLAIN, user_flags, loaded)] == ["PLAN-111"]


def test_sizes_that_the_configuration_leaves_out_are_named() -> None:
    model = PLAIN._replace(filled=("num_attention_heads=32",))
    (notice,) = find_loading_notices(thresholds(), model, said(), model)

    assert (notice.id, notice.found) == ("PLAN-110", "num_attention_heads=32")


def test_fewer_devices_hold_what_is_quantised_while_it_is_loaded() -> None:
    user_flags = said("--quantization", "fp8", "-tp", "1", "--max-model-len", "2048")
    streamed = as_loaded(thresholds(), PLAIN, user_flags)
    at_once = as_loaded(thresholds(quantizes_while_loading=False), PLAIN, user_flags)

    placement = fit_model(host(1, 96), streamed, user_flags, RULES)
    assert "--quantization fp8 quantises linear layers to 8 bits" in streamed.conversion
    assert placement.uses[0].weights < 75 * GIB
    with pytest.raises(Exception, match="until all are loaded"):
        fit_model(host(1, 96), at_once, user_flags, RULES)


OFFLOADS, ON_CPU = "VLLM_OFFLOAD_WEIGHTS_BEFORE_QUANT", "--weights-load-device"


@pytest.mark.parametrize(
    ("settings", "available", "engines", "setting"),
    [
        ({OFFLOADS: "1"}, 57, 1, f"{OFFLOADS}=1"),
        ({ON_CPU: "cpu"}, 57, 1, f"{ON_CPU}=cpu"),
        ({OFFLOADS: "1"}, 70, 1, ""),
        ({OFFLOADS: "1"}, 70, 2, f"{OFFLOADS}=1"),  # each engine holds its own copy
        ({OFFLOADS: "0"}, 57, 1, ""),
        ({}, 57, 1, ""),
    ],
)
def test_weights_that_the_host_holds_before_they_are_quantised_need_its_memory(
    settings: dict[str, str], available: int, engines: int, setting: str
) -> None:
    plain = ModelFacts("/m", True, "LlamaForCausalLM", "", Weights(65 * GIB, 65 * GIB // 2, 0), None, "")
    loaded = plain._replace(weights=Weights(65 * GIB, 0, 65 * GIB // 2))
    host_facts = host()._replace(memory=Memory(128 * GIB, available * GIB, 0, 0))
    uses = [Use(at, at, 1, 1, 0, 0) for at in range(engines)]

    assert [item.values["setting"] for item in find_host_weights(host_facts, plain, loaded, settings, uses)] == (
        [setting] if setting else []
    )
    assert not [*find_host_weights(host_facts, plain, plain, settings, uses)]  # nothing is quantised
