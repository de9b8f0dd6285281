"""What vLLM has no kernel for is refused, as its platforms and its classes said; what was not asked is not."""

from __future__ import annotations

from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.lock.vllm_lists import lists_path, read_lists
from entrypoints.core.records import Device, Facts, Processor
from entrypoints.model.config import parse_config
from entrypoints.model.read import ModelFacts, parse_model
from entrypoints.plan.kernel_limits import find_attention_refusals, find_cpu_refusals
from entrypoints.request.vllm_lists import VllmLists
from tests.evidence import oracle
from tests.support.hosts.host_models import SMOLLM2
from tests.support.planned import models
from tests.support.sample import facts


def on_card(architecture: str) -> Facts:
    sample = facts()
    device = Device.__new__(Device, *[None] * len(Device._fields))._replace(architecture=architecture)
    return sample._replace(devices=(device,))


def problems(
    accelerator: str = "cuda", *, name: str = "", architecture: str = "9.0", version: str = "0.33.0", **settings: str
) -> list[str]:
    lists = read_lists(lists_path(DRYDOCK, "vllm", version))
    assert lists
    named = {f"--{option.replace('_', '-')}": value for option, value in settings.items()}
    model: Any = models()[name] if name else SMOLLM2
    profile = {"accelerator": accelerator, "vllm": version}
    refusals = find_attention_refusals(profile, on_card(architecture), model, VllmLists(lists.lists), named)
    return [f"{refusal.problem}; {refusal.expected}" for refusal in refusals]


LATENT, SINKS, SPARSE = "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3.2"


@pytest.mark.parametrize(
    ("name", "settings", "part"),
    [
        ("", {"kv_cache_dtype": "fp8_ds_mla"}, "--kv-cache-dtype fp8_ds_mla, for which no attention backend"),
        ("", {"kv_cache_dtype": "fp9"}, "--kv-cache-dtype fp9: invalid value; one of "),
        ("", {"attention_backend": "FLASHMLA"}, "non-MLA not supported"),
        ("", {"attention_backend": "ROCM_ATTN"}, "ROCM_ATTN on cuda"),
        ("", {"attention_backend": "FLASH_ATN"}, "a name such as FLASH_ATTN"),
        ("", {"attention_config": '{"backend": "FLASHMLA"}'}, "non-MLA not supported"),
        ("", {"attention_backend": "FLASH_ATTN", "dtype": "float"}, "TRITON_ATTN"),
        ("", {"attention_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8", "architecture": "8.9"}, "dtype fp8"),
        ("", {"block_size": "24"}, "--block-size 24, for which no attention backend has a kernel"),
        ("", {"block_size": "24", "attention_backend": "TRITON_ATTN"}, "--block-size 24"),
        (LATENT, {"attention_backend": "FLASH_ATTN"}, "MLA not supported"),
        (LATENT, {"attention_backend": "FLASHMLA_SPARSE"}, "non-sparse not supported"),
        (LATENT, {"attention_backend": "FLASHMLA", "block_size": "16"}, "--block-size 16"),
        (LATENT, {"attention_backend": "CUTLASS_MLA"}, "compute capability not supported"),
        (SINKS, {"attention_backend": "FLEX_ATTENTION"}, "attention sinks not supported"),
        (SPARSE, {"attention_backend": "FLASHMLA"}, "sparse not supported"),
        ("", {"kv_cache_dtype": "fp8_e5m2", "attention_backend": "FLASH_ATTN"}, "--kv-cache-dtype fp8_e5m2"),
    ],
)
def test_what_no_kernel_takes_is_refused(name: str, settings: dict[str, str], part: str) -> None:
    (message,) = problems(name=name, **settings)
    assert part in message


@pytest.mark.parametrize(
    ("accelerator", "name", "settings"),
    [
        ("cuda", "", {}),
        ("cuda", "", {"attention_backend": "flash_attn", "block_size": "48", "dtype": "bfloat16"}),
        ("cuda", "", {"attention_backend": "auto"}),
        ("cuda", "", {"attention_backend": "CUSTOM"}),
        ("cuda", "", {"kv_cache_dtype": "bfloat16", "version": "0.18.0"}),
        ("cuda", SINKS, {"attention_backend": "FLASH_ATTN", "architecture": "10.0"}),
        ("cuda", "", {"kv_cache_dtype": "fp8"}),
        ("cuda", "", {"kv_cache_dtype": "turboquant_k8v4"}),
        ("cuda", "", {"attention_backend": "FLASHMLA", "architecture": "99.0"}),
        ("cuda", "", {"attention_backend": "FLASHMLA", "version": "0.11.0"}),
        ("cuda", LATENT, {"attention_backend": "FLASHMLA", "kv_cache_dtype": "fp8"}),
        ("cuda", SPARSE, {"kv_cache_dtype": "fp8_ds_mla"}),
        ("cuda", SPARSE, {"kv_cache_dtype": "fp8"}),
        ("cuda", SINKS, {"attention_backend": "TRITON_ATTN"}),
        ("cpu", "", {"attention_backend": "FLASH_ATTN", "block_size": "32"}),
        ("rocm", "", {"attention_backend": "TRITON_ATTN", "architecture": "gfx942"}),
        ("xpu", "", {"attention_backend": "TRITON_ATTN"}),
        ("ascend", "", {"attention_backend": "BANANA"}),
    ],
)
def test_what_vllm_takes_or_was_not_asked_is_not_refused(accelerator: str, name: str, settings: dict[str, str]) -> None:
    assert problems(accelerator, name=name, **settings) == []


def test_platforms_that_choose_by_name_refuse_others() -> None:
    assert (
        "one of FLASH_ATTN, TRITON_ATTN, or none"
        in problems("xpu", architecture="bmg-g21", attention_backend="FLASHINFER")[0]
    )
    assert "FLASHINFER on rocm" in problems("rocm", architecture="gfx942", attention_backend="FLASHINFER")[0]
    assert "--block-size 24" in problems("cpu", architecture="", block_size="24")[0]


# --- CPUs -----------------------------------------------------------------------------------------------------------


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
