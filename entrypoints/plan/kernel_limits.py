"""What this vLLM has no kernel for: attention backends with their options, and what its CPU backend computes. Pure.

A release was asked about each backend on each device that is listed (attention_answers.json, written by
`python -m drydock.lock.ask_rules`). What was not asked, and what a newer release would say, is not refused.
vLLM says what CPUs do not compute while it builds the model's classes; `tests.evidence.oracle` asks these. Sources, in
vLLM 0.32: platforms/cpu.py, v1/attention/backends/cpu_attn.py, and below model_executor:
kernels/linear/scaled_mm/cpu.py, layers/fused_moe/experts/cpu_moe.py and layers/fused_moe/config.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from entrypoints.core.parse import parse_untrusted_json, parse_version_numbers
from entrypoints.core.records import Facts
from entrypoints.model.read import ModelFacts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import ATTENTION_BACKEND, ATTENTION_CONFIG, BLOCK_SIZE, CACHE_TYPE, DTYPE, NO_LATENT
from entrypoints.request.option_values import read_json_key
from entrypoints.request.vllm_lists import VllmLists

Settings = Mapping[str, str | bool]
ANSWERS = os.path.join(os.path.dirname(__file__), "attention_answers.json")
"""Version of vLLM → `names` of its backends, `platforms`, and `refusals`: the distinct answers. A platform has the
`devices` and `layers` that were asked, and `backends`: name, empty where vLLM chooses → kind of layer, or layer and
device where that differs → place in `refusals`."""
WITH_DEVICES = ("cuda", "rocm")
"""Platforms on which the answer depends on the device."""
OF_PLATFORM = {"ROCM_": "rocm", "XPU_": "xpu", "CPU_": "cpu", "AMX_": "cpu"}
"""Beginning of a backend's name → the only platform that has its kernels."""
OF_NVIDIA = ("FLASHINFER", "FLASHMLA", "CUTLASS", "TOKENSPEED", "B12X", "HPC")
"""Parts of the names of backends whose kernels are libraries of NVIDIA GPUs: ROCm's vLLM cannot import them."""
OF_USER = "CUSTOM"
"""The name of a backend that a plugin registers."""
BY_MODEL = ("DeepseekV4", "MiniMaxM3")
"""Beginnings of architectures that choose the backends of their layers themselves."""
OF_EVERY_BACKEND = ("bfloat16", "float16")
"""Types of the cache that no backend of a release may refuse: then there is no answer with their names."""
BY_LAYER = ("turboquant", "ultraquant", "octave")
"""Beginnings of types of the cache with which some layers keep the type of the model."""
WITH_SINKS = ("GptOssForCausalLM",)
"""Source: vllm/model_executor/models/gpt_oss.py, Attention(sinks=…)."""
TYPES = {"half": "float16", "float": "float32"}
"""vLLM's second names of types. Source: config/model.py, _STR_DTYPE_TO_TORCH_DTYPE."""
_SUGGESTED = 0.6


class Answers(NamedTuple):
    """What one release said of a layer on a device."""

    of_backends: Mapping[str, str | Sequence[str]]
    """Backend → vLLM's words for why it never takes the layer, or else the options with which it does not."""

    def find_reasons(self, backend: str, options: Sequence[str]) -> str:
        """Return why a backend does not take the layer with some options; empty if it does, or was not asked."""
        answer = self.of_backends.get(backend, ())
        return answer if isinstance(answer, str) else ", ".join(option for option in options if option in answer)


def find_attention_refusals(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, lists: VllmLists, settings: Settings
) -> Iterator[Refusal]:
    """Yield a backend, a type of the KV cache or a block size for which this vLLM has no kernel."""
    name, options = _read_backend(settings).upper(), _list_options(model, settings)
    if not (name or options):
        return
    accelerator, release = profile["accelerator"], read_answers().get(str(profile["vllm"]), {"platforms": {}})
    if accelerator not in release["platforms"]:
        return
    if name and name not in (*release["names"], OF_USER):
        close = get_close_matches(name, release["names"], 3, _SUGGESTED)
        expected = f"a name such as {', '.join(close)}" if close else f"one of vLLM's {len(release['names'])} backends"
        yield Refusal(_read_backend(settings), f"{ATTENTION_BACKEND} {name}", expected, is_misspelt=True)
        return
    judged_options = {option for answer in release["refusals"] if isinstance(answer, list) for option in answer}
    for option in (option for option in options if option.startswith(CACHE_TYPE) and option not in judged_options):
        if option.split()[1] not in OF_EVERY_BACKEND and not lists.assumed:  # forks have types of their own
            types = sorted(name.split()[1] for name in judged_options if name.startswith(CACHE_TYPE))
            yield Refusal(CACHE_TYPE, f"{option}: invalid value", f"one of {', '.join(types)}", is_misspelt=True)
            return
    layer = _describe_layer(model, lists, settings)
    if layer:
        answers = find_answers(release, accelerator, layer, _find_device(accelerator, facts))
        for refusal in _refused_layer(accelerator, name if accelerator != "cpu" else "", answers, options):
            yield refusal._replace(problem=_restore_block(refusal.problem, settings))
    if layer and settings.get(CACHE_TYPE) == "fp8_e5m2" and model.quantization == "fp8":
        problem = f"{CACHE_TYPE} fp8_e5m2 with weights of FP8"  # source: layers/attention/attention.py
        yield Refusal("fp8_e5m2", problem, f"{CACHE_TYPE} fp8 or auto", is_of_release=True)


def read_answers() -> dict[str, Any]:
    """Read what each release said. IO."""
    with open(ANSWERS, encoding="utf-8") as file:
        answers: dict[str, Any] = parse_untrusted_json(file.read())
    return answers


def _read_backend(settings: Settings) -> str:
    """Return the name of the backend that is set; empty if vLLM chooses."""
    name = settings.get(ATTENTION_BACKEND) or read_json_key(settings, ATTENTION_CONFIG, "backend")
    return "" if not isinstance(name, str) or name.lower() == "auto" else name


def _list_options(model: ModelFacts, settings: Settings) -> list[str]:
    """Return the options that a backend may not take, as vLLM was asked about them."""
    dtype, cache_type = str(settings.get(DTYPE) or "auto"), str(settings.get(CACHE_TYPE) or "auto")
    block = str(settings.get(BLOCK_SIZE) or "")
    options = [f"{DTYPE} {TYPES.get(dtype, dtype)}"] if dtype != "auto" and _read_backend(settings) else []
    if cache_type != "auto" and not cache_type.startswith(BY_LAYER):
        options.append(f"{CACHE_TYPE} {cache_type}")
    if block.isdecimal() and int(block) and not (model.geometry and model.geometry.states):
        # Kernels divide a block: the greatest power of two in it decides. Layers with a state change the blocks' size.
        options.append(_reduce_block(int(block)))
    return options


def _reduce_block(block: int) -> str:
    """Return the option that vLLM was asked about for a block size: with the greatest power of two in it."""
    return f"{BLOCK_SIZE} {block & -block}"


def _restore_block(problem: str, settings: Settings) -> str:
    """Return a problem with the block size that is set, in place of the one that vLLM was asked about."""
    block = str(settings.get(BLOCK_SIZE) or "")
    return problem.replace(_reduce_block(int(block)), f"{BLOCK_SIZE} {block}", 1) if block.isdecimal() else problem


def _describe_layer(model: ModelFacts, lists: VllmLists, settings: Settings) -> str:
    """Return kind and size of the model's layers; empty if these choose their backends, or if that is not known."""
    geometry = model.geometry
    if geometry is None or geometry.compressed or model.pooling or model.architecture.startswith(BY_MODEL):
        return ""
    if geometry.latent and model.model_type not in (lists.names("latent_types") or ()):
        return ""
    if geometry.latent and settings.get(NO_LATENT) != "1":
        return f"{'sparse' if geometry.sparse else 'latent'} {geometry.latent}"
    return f"{'sinks' if model.architecture in WITH_SINKS else 'plain'} {geometry.head_size}"


def _find_device(accelerator: str, facts: Facts) -> str:
    """Return the oldest of the devices; empty where none is known, or where the answer does not depend on it."""
    architectures = {device.architecture for device in facts.devices if device.architecture}
    return min(architectures, key=parse_version_numbers, default="") if accelerator in WITH_DEVICES else ""


def find_answers(release: Mapping[str, Any], accelerator: str, layer: str, device: str) -> Answers:
    """Return what was answered about a layer on a device; nothing about what was not asked."""
    platform = release["platforms"][accelerator]
    if device not in platform["devices"] or layer not in platform["layers"]:
        return Answers({})
    cell, kind = f"{layer} {device}", layer.split(maxsplit=1)[0]
    places = {name: cells.get(cell, cells.get(kind)) for name, cells in platform["backends"].items()}
    return Answers({name: release["refusals"][place] for name, place in places.items() if place is not None})


def _refused_layer(accelerator: str, name: str, answers: Answers, options: Sequence[str]) -> Iterator[Refusal]:
    """Yield the backend that the user names, or else the options that none takes which vLLM would choose."""
    reasons = answers.find_reasons(name, options)
    takers = [backend for backend in answers.of_backends if not answers.find_reasons(backend, options)]
    takers = [backend for backend in takers if backend and has_kernels(accelerator, backend)]
    if name and not has_kernels(accelerator, name):
        yield Refusal(name, f"{ATTENTION_BACKEND} {name} on {accelerator}", _describe_takers(takers))
    elif name and reasons:
        problem = f"{ATTENTION_BACKEND} {name}, which does not take this model on {accelerator}: {reasons}"
        yield Refusal(name, problem, _describe_takers(takers))
    elif reasons and isinstance(answers.of_backends[""], (list, tuple)):
        problem = f"{reasons}, for which no attention backend has a kernel for this model on {accelerator}"
        yield Refusal(reasons.split()[0], problem, "another value, or none, so that vLLM chooses")


def has_kernels(accelerator: str, name: str) -> bool:
    """Return whether vLLM of a platform can have the kernels of a backend, by its name."""
    platform = next((value for start, value in OF_PLATFORM.items() if name.startswith(start)), accelerator)
    return platform == accelerator and not (accelerator == "rocm" and any(part in name for part in OF_NVIDIA))


def _describe_takers(names: Sequence[str]) -> str:
    return f"one of {', '.join(names)}, or none, so that vLLM chooses" if names else "none, so that vLLM chooses"


# --- CPUs -----------------------------------------------------------------------------------------------------------


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
