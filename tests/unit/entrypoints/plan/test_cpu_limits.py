"""What vLLM's CPU backend has no kernel for, by the processor: as its own classes say (vLLM 0.32)."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.core.records import Processor
from entrypoints.model.config import parse_config
from entrypoints.model.read import ModelFacts, parse_model
from entrypoints.plan.cpu_limits import find_cpu_refusals
from tests.evidence import oracle
from tests.support.planned import models
from tests.support.sample import facts

DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 2048,
         "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 1000}  # fmt: skip
EXPERTS = {**DENSE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 64,
           "num_experts_per_tok": 2, "moe_intermediate_size": 1024}  # fmt: skip
PLAIN, AMX, OLD = ("avx2", "avx512f"), ("avx512f", "amx_tile"), ("avx2",)


def packed(kind: str, bits: int, **weights: Any) -> dict[str, Any]:
    group = {"weights": {"type": kind, "num_bits": bits, **weights}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


def model_of(config: dict[str, Any], quantised: dict[str, Any] | None = None) -> ModelFacts:
    return parse_model("m", parse_config({**config, **({"quantization_config": quantised} if quantised else {})}), "c")


def refused(model: ModelFacts, flags: tuple[str, ...], version: str = "0.32.0", **settings: str) -> list[str]:
    host = facts(processor=Processor("x86_64", "GenuineIntel", "Xeon", flags))
    named = {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
    return [refusal.name for refusal in find_cpu_refusals(version, host, model, named)]


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}


@pytest.mark.parametrize(
    ("config", "quantised"),
    [
        (DENSE, BLOCKS),
        (EXPERTS, BLOCKS),
        (DENSE, packed("float", 8, strategy="block", block_structure=[128, 128])),
        (EXPERTS, {"quant_method": "mxfp4"}),
        (EXPERTS, GPTQ),
        (EXPERTS, {"quant_method": "awq", "bits": 4, "group_size": 128}),
        (EXPERTS, packed("int", 4, group_size=128)),
        (EXPERTS, packed("int", 8)),
    ],
)
def test_kernels_with_amx_alone_refuse_other_processors(config: dict[str, Any], quantised: dict[str, Any]) -> None:
    model = model_of(config, quantised)

    assert refused(model, PLAIN) == ["amx"]
    assert refused(model, AMX) == []
    assert refused(model, ()) == []


@pytest.mark.parametrize(
    ("config", "quantised"),
    [
        (DENSE, None),
        (EXPERTS, None),
        (DENSE, GPTQ),
        (DENSE, {"quant_method": "mxfp4"}),
        (DENSE, packed("int", 8)),
        (EXPERTS, {"quant_method": "fp8", "activation_scheme": "dynamic"}),
        (DENSE, packed("float", 8, strategy="channel")),
        (EXPERTS, {"quant_method": "compressed-tensors", "config_groups": {"group_0": "odd"}}),
    ],
)
def test_other_kernels_are_for_every_processor(config: dict[str, Any], quantised: dict[str, Any] | None) -> None:
    assert refused(model_of(config, quantised), PLAIN) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "sparse-attention"),
        ("zai-org/GLM-5", "sparse-attention"),
        ("deepseek-ai/DeepSeek-V4-Flash", "DeepseekV4ForCausalLM"),
        ("moonshotai/Kimi-K3", "KimiK3ForConditionalGeneration"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "relu2"),
        ("nvidia/Qwen3.5-122B-A10B-NVFP4", "modelopt_fp4"),
        ("moonshotai/Kimi-K2-Thinking", "wna16"),
    ],
)
def test_what_no_processor_computes_is_refused(name: str, expected: str) -> None:
    assert expected in refused(models()[name], AMX)


def test_what_vllms_classes_refuse_on_a_cpu_is_refused_before() -> None:
    kinds = ("sparse", "cuda-only", "cpu-quantisation")
    names = [name for name, because in oracle.read_lists()["not_asked"].items() if because in kinds]

    assert len(names) > 10
    assert [name for name in names if not refused(models()[name], AMX)] == []


def test_a_cache_in_fp8_requires_avx512() -> None:
    model = model_of(DENSE)

    assert refused(model, OLD, kv_cache_dtype="fp8_e4m3") == ["--kv-cache-dtype"]
    assert refused(model, PLAIN, kv_cache_dtype="fp8") == refused(model, OLD, kv_cache_dtype="auto") == []


def test_versions_whose_kernels_were_not_read_refuse_nothing() -> None:
    assert refused(model_of(EXPERTS, {"quant_method": "mxfp4"}), PLAIN, "0.27.1") == []
    assert refused(model_of(DENSE, BLOCKS), PLAIN, "0.27.1") == ["amx"]
    assert refused(model_of(DENSE, BLOCKS), PLAIN, "0.11.0") == []
