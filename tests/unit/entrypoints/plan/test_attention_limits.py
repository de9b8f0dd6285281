"""What platforms of vLLM said of attention backends is refused; what was not asked, and what they take, is not."""

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
        ("", {"block_size": "24"}, "--block-size 8, for which no attention backend has a kernel"),
        ("", {"block_size": "24", "attention_backend": "TRITON_ATTN"}, "--block-size 8"),
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
    assert "--block-size 8" in problems("cpu", architecture="", block_size="24")[0]
