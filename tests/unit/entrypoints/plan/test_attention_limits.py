"""What the classes of attention backends do not take is refused; what they compute, and what is not asked, is not."""

from __future__ import annotations

from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.lock.vllm_lists import lists_path, read_lists
from entrypoints.core.records import Device, Facts
from entrypoints.plan.attention_limits import find_attention_refusals
from entrypoints.request.vllm_lists import VllmLists
from tests.support.hosts.host_models import SMOLLM2
from tests.support.planned import models
from tests.support.sample import facts


def lists_of(version: str) -> VllmLists:
    record = read_lists(lists_path(DRYDOCK, "vllm", version))
    assert record
    return VllmLists(record.lists)


def on_card(architecture: str) -> Facts:
    sample = facts()
    device = Device.__new__(Device, *[None] * len(Device._fields))._replace(architecture=architecture)
    return sample._replace(devices=(device,))


def problems(
    accelerator: str = "cuda",
    *,
    model: Any = SMOLLM2,
    architecture: str = "9.0",
    version: str = "0.33.0",
    **settings: str,
) -> list[str]:
    named = {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
    refusals = find_attention_refusals(accelerator, on_card(architecture), model, lists_of(version), named)
    return [f"{refusal.problem}; {refusal.expected}" for refusal in refusals]


LATENT, SINKS, SPARSE = "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3.2"


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"kv_cache_dtype": "fp8_ds_mla"}, "which no attention backend takes for this model"),
        ({"kv_cache_dtype": "fp8_inc"}, "which no attention backend takes for this model"),
        ({"attention_backend": "FLASHMLA"}, "models without latent attention (MLA)"),
        ({"attention_backend": "ROCM_ATTN"}, "ROCM_ATTN on cuda"),
        ({"attention_backend": "FLASH_ATN"}, "a name such as FLASH_ATTN"),
        ({"attention_config": '{"backend": "FLASHMLA"}'}, "models without latent attention (MLA)"),
        ({"attention_backend": "FLASH_ATTN", "dtype": "float"}, "which does not take float32"),
        ({"attention_backend": "HPC_ATTN"}, "heads of 64 numbers"),
        ({"attention_backend": "CUTLASS_MLA"}, "compute capability 9.0"),
        ({"block_size": "24"}, "for which no attention backend has a kernel; a multiple of 16"),
        ({"block_size": "24", "attention_backend": "TRITON_ATTN"}, "which does not take --block-size 24"),
    ],
)
def test_what_no_kernel_takes_is_refused(settings: dict[str, str], part: str) -> None:
    messages = problems(**settings)
    assert len(messages) == 1
    assert part in messages[0]


@pytest.mark.parametrize(
    ("name", "settings", "part"),
    [
        (LATENT, {"attention_backend": "FLASH_ATTN"}, "latent attention (MLA)"),
        (LATENT, {"attention_backend": "FLASHMLA_SPARSE"}, "models without sparse attention"),
        (LATENT, {"attention_backend": "FLASHMLA", "block_size": "16"}, "--block-size 16"),
        (SINKS, {"attention_backend": "FLEX_ATTENTION"}, "attention sinks"),
        (SPARSE, {"attention_backend": "FLASHMLA"}, "which does not take sparse attention"),
    ],
)
def test_what_a_model_s_layers_ask_decides(name: str, settings: dict[str, str], part: str) -> None:
    messages = problems(model=models()[name], **settings)
    assert len(messages) == 1
    assert part in messages[0]


@pytest.mark.parametrize(
    ("accelerator", "name", "settings"),
    [
        ("cuda", "", {}),
        ("cuda", "", {"attention_backend": "flash_attn", "block_size": "16", "dtype": "bfloat16"}),
        ("cuda", "", {"attention_backend": "auto"}),
        ("cuda", "", {"kv_cache_dtype": "fp8"}),
        ("cuda", "", {"kv_cache_dtype": "turboquant_k8v4"}),
        ("cuda", LATENT, {"attention_backend": "FLASHMLA", "kv_cache_dtype": "fp8"}),
        ("cuda", SPARSE, {"kv_cache_dtype": "fp8_ds_mla"}),
        ("cuda", SINKS, {"attention_backend": "TRITON_ATTN"}),
        ("cpu", "", {"attention_backend": "FLASH_ATTN", "block_size": "32"}),
        ("rocm", "", {"attention_backend": "TRITON_ATTN"}),
        ("xpu", "", {"attention_backend": "TRITON_ATTN"}),
        ("ascend", "", {"attention_backend": "BANANA"}),
    ],
)
def test_what_vllm_takes_is_not_refused(accelerator: str, name: str, settings: dict[str, str]) -> None:
    assert problems(accelerator, model=models()[name] if name else SMOLLM2, **settings) == []


def test_platforms_that_choose_by_name_refuse_others() -> None:
    assert "on xpu; one of FLASH_ATTN" in problems("xpu", architecture="", attention_backend="FLASHINFER")[0]
    assert "FLASHINFER on rocm" in problems("rocm", architecture="gfx942", attention_backend="FLASHINFER")[0]
    assert "a multiple of 32" in problems("cpu", architecture="", block_size="24")[0]


def test_a_version_without_lists_of_backends_refuses_nothing() -> None:
    assert problems(version="0.11.0", attention_backend="BANANA", block_size="24") == []
