"""What is decided on AMD GPUs, and why."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import Facts, Reason, ServePlan
from entrypoints.decide import rocm
from entrypoints.decide.records import Thresholds
from entrypoints.model.read import ModelFacts
from entrypoints.plan.plan import command
from entrypoints.request.intents import NONE, Intents
from entrypoints.request.vllm_flags import parse_given
from tests.support.hosts.expect import profile_of, read
from tests.support.hosts.models import LLAMA

KNOWN = (
    "--model", "--numa-bind", "--tensor-parallel-size", "--served-model-name", "--host", "--port", "--max-model-len",
    "--gpu-memory-utilization", "--distributed-executor-backend", "--data-parallel-size", "--quantization",
)  # fmt: skip


def host(name: str) -> tuple[dict[str, Any], Facts]:
    profile = profile_of(name)
    return profile, read(name, profile)


def plan(
    name: str,
    *words: str,
    env: dict[str, str] | None = None,
    intents: Intents = NONE,
    model: ModelFacts = LLAMA,
    known: tuple[str, ...] = (),
) -> ServePlan:
    profile, facts = host(name)
    return command(profile, facts, model, parse_given((model.name, *words), env or {}, known, intents))


def reason(found: ServePlan, setting: str) -> Reason:
    return next(reason for reason in found.reasons if reason.setting == setting)


def test_one_instinct_of_eight_serves_with_amds_kernels() -> None:
    found = plan("rocm-mi300x-8x", "-tp", "1")

    assert found.env["HIP_VISIBLE_DEVICES"] == "0"
    assert found.env["VLLM_ROCM_USE_AITER"] == "1"
    assert "NCCL_MIN_NCHANNELS" not in found.env
    assert "amd-smi" in reason(found, "HIP_VISIBLE_DEVICES").because


def test_eight_linked_gpus_get_more_channels() -> None:
    found = plan("rocm-mi300x-8x", "-tp", "8")

    assert found.env["NCCL_MIN_NCHANNELS"] == "112"
    assert "HIP_VISIBLE_DEVICES" not in found.env


def test_what_the_user_set_wins() -> None:
    found = plan("rocm-mi300x-8x", env={"VLLM_ROCM_USE_AITER": "0", "HIP_VISIBLE_DEVICES": "5,6"})

    assert "VLLM_ROCM_USE_AITER" not in found.env
    assert reason(found, "VLLM_ROCM_USE_AITER").value == "0"
    assert "HIP_VISIBLE_DEVICES" not in found.env


def test_a_wished_device_is_named_by_hips_number() -> None:
    found = plan("rocm-mi300x-8x", intents=Intents(devices=(3,)))

    assert found.env["HIP_VISIBLE_DEVICES"] == "3"


def test_a_visible_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(EntrypointError, match="HIP_VISIBLE_DEVICES names 9"):
        plan("rocm-mi300x-8x", env={"HIP_VISIBLE_DEVICES": "9"})


def test_a_variable_that_hides_everything_is_refused() -> None:
    with pytest.raises(EntrypointError, match="hides every device"):
        plan("rocm-mi300x-8x", env={"HIP_VISIBLE_DEVICES": "-1"})


def test_workers_are_bound_to_their_processors_where_that_is_possible() -> None:
    profile, facts = host("rocm-mi300x-8x")
    blocked = facts._replace(kernel={**facts.kernel, "sys_nice": "no"})
    given = parse_given(("--model", LLAMA.name), {}, KNOWN)

    assert "--numa-bind" not in rocm.decide(profile, blocked, LLAMA, given).values
    values = rocm.decide(profile, facts, LLAMA, given).values
    assert values["--numa-bind"].value is True
    assert values["HSA_OVERRIDE_CPU_AFFINITY_DEBUG"].value == "0"


def test_radeon_has_no_aiter_and_copies_over_pcie() -> None:
    found = plan("rocm-rx7900xtx-2x", "-tp", "2")

    assert found.env["HSA_FORCE_FINE_GRAIN_PCIE"] == "1"
    assert found.env.get("VLLM_ROCM_USE_AITER", "0") == "0"


def test_aiter_where_it_has_no_kernels_is_kept_and_said() -> None:
    found = plan("rocm-rx7900xtx-2x", env={"VLLM_ROCM_USE_AITER": "1"})

    assert [finding.id for finding in found.findings if finding.id == "ROCM-031"] == ["ROCM-031"]


def test_a_die_that_another_process_holds_is_left_alone() -> None:
    found = plan("rocm-mi250x-4x")

    assert found.env["HIP_VISIBLE_DEVICES"] != "0"


def test_a_gpu_without_kernels_is_refused_with_what_the_image_has() -> None:
    profile, facts = host("rocm-mi250x-4x")
    strange = facts._replace(devices=tuple(device._replace(architecture="gfx1030") for device in facts.devices))

    with pytest.raises(EntrypointError, match=r"kernels for gfx90a, gfx942, the host has .*gfx1030"):
        rocm.decide(profile, strange, LLAMA, parse_given((LLAMA.name,), {}))


def test_a_processors_own_graphics_is_left_out_and_said() -> None:
    profile, facts = host("rocm-mi300x-8x")
    own = facts.devices[7]._replace(architecture="gfx1036", name="AMD Radeon Graphics")
    mixed = facts._replace(devices=(*facts.devices[:7], own))

    decision = rocm.decide(profile, mixed, LLAMA, parse_given((LLAMA.name,), {}))

    assert [finding.found for finding in decision.findings if finding.id == "ROCM-030"] == [
        "7: AMD Radeon Graphics gfx1036"
    ]


def test_sliding_windows_take_ck_attention_where_triton_lacks_them() -> None:
    assert LLAMA.geometry is not None
    sliding = LLAMA._replace(geometry=LLAMA.geometry._replace(sliding_layers=16, window=4096))

    assert plan("rocm-mi250x-4x", model=sliding).env["VLLM_USE_TRITON_FLASH_ATTN"] == "0"
    assert "VLLM_USE_TRITON_FLASH_ATTN" not in plan("rocm-mi250x-4x").env


@pytest.mark.parametrize(
    ("name", "method", "ids"),
    [
        ("rocm-mi300x-8x", "fp8", ["ROCM-034"]),
        ("rocm-mi300x-8x", "mxfp4", ["ROCM-035"]),
        ("rocm-mi355x-8x", "mxfp4", []),
        ("rocm-mi355x-8x", "fp8", []),
        ("rocm-rx7900xtx-2x", "fp8", ["ROCM-033"]),
        ("rocm-mi300x-8x", "hqq", ["ROCM-032"]),
        ("rocm-mi300x-8x", "gptq", []),
    ],
)
def test_quantization_is_judged_by_what_the_gpu_computes(name: str, method: str, ids: list[str]) -> None:
    found = plan(name, model=LLAMA._replace(quantization=method))

    assert [finding.id for finding in found.findings if finding.id.startswith("ROCM-03")] == ids


@pytest.mark.parametrize(
    ("words", "env", "heads"),
    [
        ((), {}, 128),
        (("-tp", "3"), {}, 0),
        ((), {"VLLM_ROCM_USE_AITER": "0"}, 0),
        ((), {"VLLM_ROCM_USE_AITER_MLA": "0"}, 0),
    ],
)
def test_amds_kernel_of_latent_attention_names_the_heads_of_a_rank(
    words: tuple[str, ...], env: dict[str, str], heads: int
) -> None:
    profile, facts = host("rocm-mi300x-8x")
    found = rocm.rules(facts, Thresholds(profile["thresholds"]), parse_given(words, env))

    assert max(found.latent_heads, default=0) == heads


def test_other_kernels_take_any_number_of_heads() -> None:
    profile, facts = host("rocm-rx7900xtx-2x")

    assert rocm.rules(facts, Thresholds(profile["thresholds"]), parse_given((), {})).latent_heads == ()
