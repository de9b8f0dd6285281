"""What vLLM's CPU backend refuses of a model, by the processor's instructions and by its kernels. Pure.

vLLM says it while it builds the model's classes; `tests.evidence.oracle` asks these classes. Sources, in vLLM 0.32:
platforms/cpu.py, v1/attention/backends/cpu_attn.py, and below model_executor: kernels/linear/scaled_mm/cpu.py,
layers/fused_moe/experts/cpu_moe.py and layers/fused_moe/config.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.core.parse import parse_version_numbers
from entrypoints.core.records import Facts
from entrypoints.model.read import ModelFacts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import CACHE_TYPE

Settings = Mapping[str, str | bool]
FP8_FROM, EXPERTS_FROM = (0, 27), (0, 32)
"""The versions whose kernels were read; in 0.32 the kernels of experts are others than before."""
AMX, AVX512 = "amx_tile", "avx512f"
"""Names in /proc/cpuinfo. PyTorch's torch.cpu._is_amx_tile_supported is true for the first."""
ONLY_ACCELERATORS = ("DeepseekV4ForCausalLM", "KimiK3ForConditionalGeneration")
"""Architectures whose classes use streams or kernels of CUDA or ROCm. Source: vllm/models/deepseek_v4, kimi_k3."""
FOUR_BITS = ("awq", "awq_marlin", "gptq", "gptq_marlin")
GROUP_OF_NO_KERNEL = 32
"""Weights that share a scale, for which experts of 4 bits have no kernel."""
INSTEAD = "use an unquantised copy of the model, or a GPU"
INSTEAD_OF_AMX = "use a processor with AMX (Sapphire Rapids or newer), an unquantised copy of the model, or a GPU"


def find_cpu_refusals(version: str, facts: Facts, model: ModelFacts, settings: Settings) -> Iterator[Refusal]:
    """Yield what this vLLM has no kernel for on this processor. What is not known is not refused."""
    minor = parse_version_numbers(version)[:2]
    if minor < FP8_FROM:
        return
    yield from _refused_by_class(minor, model)
    if not facts.processor.flags:
        return
    flags = set(facts.processor.flags)
    if minor >= EXPERTS_FROM:
        yield from _refused_cache(flags, settings)
        yield from _refused_experts(facts.processor.architecture, flags, model)
    if AMX not in flags and _has_fp8_blocks(model):
        yield _needs_amx(f"weights of {model.quantization} with a scale for each block")


def _refused_by_class(minor: tuple[int, ...], model: ModelFacts) -> Iterator[Refusal]:
    """Yield what no processor computes."""
    if model.geometry and model.geometry.sparse:
        yield _needs_gpu("sparse-attention", f"sparse attention of {model.architecture} on a CPU", "full attention")
    if model.architecture in ONLY_ACCELERATORS and minor >= EXPERTS_FROM:
        yield _needs_gpu(model.architecture, f"architecture {model.architecture} on a CPU", "a GPU")
    if not _has_experts(model):
        return
    if model.table.get("mlp_hidden_act") == "relu2":
        yield _needs_gpu("relu2", "experts without a gate (relu2) on a CPU", "experts with a gate, such as SiLU's")
    if minor >= EXPERTS_FROM and model.quantization == "modelopt_fp4":
        yield _needs_gpu("modelopt_fp4", "experts in NVFP4 on a CPU", "another type", INSTEAD)
    is_packed = model.quantization == "compressed-tensors"
    if minor >= EXPERTS_FROM and is_packed and (model.bits, model.group) == (4, GROUP_OF_NO_KERNEL):
        problem = f"experts of 4 bits with a scale for {model.group} weights on a CPU"
        yield _needs_gpu("wna16", problem, "a scale for 128 weights", INSTEAD)


def _needs_gpu(name: str, problem: str, expected: str, instead: str = "use a GPU") -> Refusal:
    return Refusal(name, problem, expected, is_of_release=True, instead=instead)


def _refused_experts(architecture: str, flags: set[str], model: ModelFacts) -> Iterator[Refusal]:
    """Yield quantised experts that only kernels with AMX compute; those of 8 bits have others on ARM and POWER."""
    if AMX in flags or not _has_experts(model):
        return
    packed = model.quantization == "compressed-tensors"
    type_of_weights = (_first_weights(model).get("type"), model.bits) if packed else ()
    if "mxfp4" in model.quantization:
        yield _needs_amx("experts in MXFP4")
    elif model.quantization in FOUR_BITS or type_of_weights == ("int", 4):
        yield _needs_amx(f"experts of 4 bits ({model.quantization})")
    elif type_of_weights == ("int", 8) and architecture == "x86_64":
        yield _needs_amx("experts of 8 bits (compressed-tensors)")


def _refused_cache(flags: set[str], settings: Settings) -> Iterator[Refusal]:
    """Yield a KV cache in FP8 that this processor does not take."""
    kind = str(settings.get(CACHE_TYPE, ""))
    if kind.startswith("fp8") and not flags & {AMX, AVX512}:
        problem = f"{CACHE_TYPE} {kind} on a processor without AVX-512"
        yield _needs_gpu(CACHE_TYPE, problem, "auto", "leave the flag out")


def _needs_amx(what: str) -> Refusal:
    expected = "a processor with AMX, whose kernels are the only ones for it"
    return Refusal("amx", f"{what} on a processor without AMX", expected, is_of_release=True, instead=INSTEAD_OF_AMX)


def _has_experts(model: ModelFacts) -> bool:
    return bool(model.geometry and model.geometry.experts)


def _has_fp8_blocks(model: ModelFacts) -> bool:
    if model.quantization == "fp8":
        return model.group > 1
    return model.quantization == "compressed-tensors" and bool(_first_weights(model).get("block_structure"))


def _first_weights(model: ModelFacts) -> Mapping[str, Any]:
    """Return how compressed-tensors describes the weights of its first group; empty if it does not."""
    value: Any = model.table
    for key in ("quantization_config", "config_groups"):
        value = value.get(key) if isinstance(value, Mapping) else None
    group = next(iter(value.values()), None) if isinstance(value, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}
