"""What is decided on AMD GPUs beyond the recorded plans."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from entrypoints.core.errors import DOES_NOT_FIT
from entrypoints.core.records import Facts
from entrypoints.decide import rocm
from entrypoints.decide.records import Thresholds
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.decision_rows import Row, check, profile_of, with_devices
from tests.support.hosts import expect
from tests.support.hosts.host_models import LLAMA

MI300, MI355, MI250, RADEON = "rocm-mi300x-8x", "rocm-mi355x-8x", "rocm-mi250x-4x", "rocm-rx7900xtx-2x"
VISIBLE, AITER, CHANNELS, NUMA = "HIP_VISIBLE_DEVICES", "VLLM_ROCM_USE_AITER", "NCCL_MIN_NCHANNELS", "--numa-bind"
TENSOR = "--tensor-parallel-size"
EXPERTS, BREAKABLE = "VLLM_ROCM_USE_AITER_MOE", "VLLM_USE_BREAKABLE_CUDAGRAPH"
KNOWN = (NUMA, "--tensor-parallel-size", "--max-model-len", "--gpu-memory-utilization")


def of_class(architecture: str, quantization: str = "") -> ModelFacts:
    return LLAMA._replace(architecture=architecture, quantization=quantization)


def without_permission(facts: Facts) -> Facts:
    return facts._replace(kernel={**facts.kernel, "sys_nice": "no"})


def with_graphics(facts: Facts) -> Facts:
    graphics = facts.devices[7]._replace(architecture="gfx1036", name="AMD Radeon Graphics")
    return facts._replace(devices=(*facts.devices[:7], graphics))


def as_apu(carved: int, shared: int, counted: int) -> Callable[[Facts], Facts]:
    """Return a change to one GPU that is part of the processor; sizes in MiB."""

    def change(facts: Facts) -> Facts:
        device = facts.devices[0]._replace(name="AMD Radeon 8060S", architecture="gfx1151", busy=False)
        apu = device._replace(memory_total=counted << 20, memory_used=161 << 20)
        sizes = {"apu_memory_mib": str(counted), "apu_vram_mib": str(carved), "apu_gtt_mib": str(shared)}
        return facts._replace(devices=(apu,), links=(), kernel={**facts.kernel, **sizes})

    return change


def of_latent_heads(heads: int) -> ModelFacts:
    """Return a large model with latent attention."""
    assert LLAMA.geometry
    geometry = LLAMA.geometry._replace(heads=heads, kv_heads=heads, latent=576)
    return LLAMA._replace(geometry=geometry, weights=Weights(1 << 39, 1 << 38, 0))


ROWS = {
    "the batch gives way before a plan is refused for 2 % of the memory": Row(
        MI300,
        "-tp 1",
        model=LLAMA._replace(weights=Weights(0, 91_000_000_000, 0)),
        values={"--max-num-batched-tokens": "2048"},
        finds={"PLAN-028": "--max-num-batched-tokens 2048"},
    ),
    "not of a vLLM that computes whole prompts": Row(
        MI250,
        "-tp 1",
        changed=with_devices(busy=False, memory_used=0),
        model=LLAMA._replace(weights=Weights(0, 29_000_000_000, 0)),
        code=DOES_NOT_FIT,
    ),
    "a processor's GPU with a small carve-out names its limits": Row(
        MI355, changed=as_apu(512, 63488, 512), refused="too little memory is free: 0 (0.3 GiB of 0.5 GiB)"
    ),
    "one whose limit is too low for the model names them too": Row(
        MI355, changed=as_apu(512, 12288, 12288), refused="512 MiB carved out by the firmware, 12288 MiB shared (GTT)"
    ),
    "one with a large carve-out serves": Row(MI355, changed=as_apu(98304, 15360, 98304), values={"-tp": None}),
    "twelve latent heads a rank have a kernel": Row(MI355, model=of_latent_heads(96), values={TENSOR: "8"}),
    "twenty do not": Row(MI355, model=of_latent_heads(160), values={TENSOR: "2"}),
    "nor do twelve in 0.18": Row(MI355, model=of_latent_heads(96), target="rocm7.0-vllm0.18", values={TENSOR: "2"}),
    "one of eight": Row(
        MI300, "-tp 1", values={VISIBLE: "0", AITER: "1", CHANNELS: None}, because={VISIBLE: "amd-smi"}
    ),
    "Hy3's experts have kernels of vLLM's": Row(
        MI300, model=of_class("HYV3ForCausalLM"), values={AITER: "1", EXPERTS: "0"}
    ),
    "a Radeon has no kernels of AITER to leave out": Row(
        RADEON, model=of_class("HYV3ForCausalLM"), values={EXPERTS: None}
    ),
    "Laguna's in 8 bits on MI300 too": Row(
        MI300, model=of_class("LagunaForCausalLM", "fp8"), values={EXPERTS: "0"}, because={EXPERTS: "Laguna-S-2.1"}
    ),
    "not on MI355": Row(MI355, model=of_class("LagunaForCausalLM", "fp8"), values={EXPERTS: None}),
    "nor in 16 bits": Row(MI300, model=of_class("LagunaForCausalLM"), values={EXPERTS: None}),
    "MiMo-V2-Flash has none of AITER's": Row(MI300, model=of_class("MiMoV2FlashForCausalLM"), values={AITER: "0"}),
    "MiniMax-M3 has blocks of 128, and whole graphs": Row(
        MI355, model=of_class("MiniMaxM3SparseForCausalLM"), values={"--block-size": "128", BREAKABLE: "0"}
    ),
    "other models have vLLM's": Row(MI355, values={"--block-size": None, BREAKABLE: None, EXPERTS: None}),
    "eight linked GPUs get more channels": Row(MI300, "-tp 8", values={CHANNELS: "112", VISIBLE: None}),
    "the user's GPUs stay": Row(MI300, env={VISIBLE: "5,6"}, values={VISIBLE: None}),
    "--devices are named by HIP's number": Row(MI300, goals={"devices": (3,)}, values={VISIBLE: "3"}),
    "a visible GPU must be there": Row(MI300, env={VISIBLE: "9"}, refused=f"{VISIBLE} names 9"),
    "one GPU must be visible": Row(MI300, env={VISIBLE: "-1"}, refused="hides every device"),
    "workers are bound": Row(MI300, known=KNOWN, values={NUMA: True, "HSA_OVERRIDE_CPU_AFFINITY_DEBUG": "0"}),
    "binding needs permission": Row(MI300, known=KNOWN, changed=without_permission, values={NUMA: None}),
    "Radeon copies over PCIe": Row(RADEON, "-tp 2", values={"HSA_FORCE_FINE_GRAIN_PCIE": "1"}),
    "AITER without kernels is kept": Row(RADEON, env={AITER: "1"}, finds={"ROCM-031": "gfx1100"}),
    "a GPU without kernels is refused": Row(
        MI250, changed=with_devices(architecture="gfx1030"), refused="this image has kernels for gfx90a, gfx942"
    ),
    "the processor's graphics is left out": Row(
        MI300, changed=with_graphics, finds={"ROCM-030": "7: AMD Radeon Graphics gfx1036"}
    ),
}
QUANTISED = [
    (MI300, "fp8", ["ROCM-034"]),
    (MI300, "mxfp4", ["ROCM-035"]),
    (MI355, "mxfp4", []),
    (MI355, "fp8", []),
    (RADEON, "fp8", ["ROCM-033"]),
    (MI300, "hqq", ["ROCM-032"]),
    (MI300, "gptq", []),
]
HEADS = [
    (MI300, "", {}, 128),
    (MI300, "-tp 3", {}, 0),
    (MI300, "", {AITER: "0"}, 0),
    (MI300, "", {f"{AITER}_MLA": "0"}, 0),
    (RADEON, "", {}, 0),
]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_decisions(row: Row) -> None:
    check(row)


@pytest.mark.parametrize(("name", "method", "ids"), QUANTISED)
def test_a_quantisation_is_judged_by_what_the_gpu_computes(name: str, method: str, ids: list[str]) -> None:
    every = tuple(f"ROCM-03{number}" for number in range(2, 6))
    model = LLAMA._replace(quantization=method)

    check(
        Row(
            name,
            model=model,
            finds=dict.fromkeys(ids, ""),
            quiet=tuple(finding_id for finding_id in every if finding_id not in ids),
        )
    )


@pytest.mark.parametrize(("name", "words", "env", "heads"), HEADS)
def test_amds_kernel_of_latent_attention_limits_the_heads_of_a_rank(
    name: str, words: str, env: dict[str, str], heads: int
) -> None:
    profile = profile_of(name)
    rocm_rules = rocm.make_rocm_rules(
        expect.read(name, profile), Thresholds(profile["thresholds"]), parse_user_flags(words.split(), env)
    )

    assert max(rocm_rules.latent_heads, default=0) == heads
