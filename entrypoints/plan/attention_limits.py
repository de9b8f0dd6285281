"""What the attention backends of this vLLM refuse, by what their classes say they take. Pure.

vLLM asks the same when it builds a model's layers: the backend that the user names, or else all that its platform
tries. What a class computes instead of listing it is not known, and refuses nothing. Source: vLLM 0.16 to 0.33,
v1/attention/backend.py (validate_configuration), platforms/cuda.py, rocm.py and xpu.py (get_attn_backend_cls).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from entrypoints.core.parse import parse_version_numbers
from entrypoints.core.records import Facts
from entrypoints.model.read import ModelFacts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import ATTENTION_BACKEND, ATTENTION_CONFIG, BLOCK_SIZE, CACHE_TYPE, DTYPE, NO_LATENT
from entrypoints.request.option_values import read_json_key
from entrypoints.request.vllm_lists import VllmLists

Settings = Mapping[str, str | bool]
VALIDATING, CHOOSING, IGNORING = ("cuda", "rocm"), ("xpu",), ("cpu",)
"""Platforms that ask the class, those that take a few names, and those that say that they ignore a name."""
OF_PLATFORM = {"ROCM_": "rocm", "XPU_": "xpu", "CPU_": "cpu", "AMX_": "cpu"}
"""Beginning of a backend's name → the only platform that has its kernels."""
OF_NVIDIA = ("FLASHINFER", "FLASHMLA", "CUTLASS", "TOKENSPEED", "B12X", "HPC")
"""Parts of the names of backends whose kernels are libraries of NVIDIA GPUs."""
BY_MODEL = ("DeepseekV4", "MiniMaxM3")
"""Beginnings of architectures that choose the backends of their layers themselves."""
WITH_SINKS = ("GptOssForCausalLM",)
"""Source: vllm/model_executor/models/gpt_oss.py, Attention(sinks=…)."""
TYPES = {"half": "float16", "float": "float32"}
"""vLLM's second names of types. Source: config/model.py, _STR_DTYPE_TO_TORCH_DTYPE."""
FP8 = ("fp8", "fp8_e4m3")
PACKED_FP8 = "fp8_ds_mla"
"""The form of FP8 that sparse attention on latent vectors makes of it. Source: model_executor/models/config.py."""
_SUGGESTED = 0.6


class Layer(NamedTuple):
    """What a layer asks of its backend. What is empty, zero or None is not asked."""

    latent: bool
    sparse: bool
    sinks: bool
    head_size: int
    dtype: str = ""
    cache_type: str = ""
    block: int = 0
    capability: tuple[int, ...] = ()


def find_attention_refusals(
    accelerator: str, facts: Facts, model: ModelFacts, lists: VllmLists, settings: Settings
) -> Iterator[Refusal]:
    """Yield a backend, a type of the KV cache or a block size for which this vLLM has no kernel."""
    backends: Mapping[str, Mapping[str, Any]] = lists.lists.get("attention_backends", {})
    if not backends or accelerator not in (*VALIDATING, *CHOOSING, *IGNORING):
        return
    name = _read_backend(settings)
    if name and name not in backends and name.upper() not in backends:
        close = get_close_matches(name.upper(), sorted(backends), 3, _SUGGESTED)
        expected = f"a name such as {', '.join(close)}" if close else f"one of vLLM's {len(backends)} backends"
        yield Refusal(name, f"{ATTENTION_BACKEND} {name}", expected, is_misspelt=True)
        return
    layer = _describe_layer(accelerator, facts, model, lists, settings)
    if layer is None:
        return
    if accelerator in IGNORING:
        yield from _refused_on_cpu(layer, backends)
    elif name:
        yield from _refused_backend(accelerator, name.upper(), layer, lists)
    else:
        yield from _refused_by_all(accelerator, layer, lists)
    if settings.get(CACHE_TYPE) == "fp8_e5m2" and model.quantization == "fp8":
        problem = f"{CACHE_TYPE} fp8_e5m2 with weights of FP8"  # source: layers/attention/attention.py
        yield Refusal("fp8_e5m2", problem, f"{CACHE_TYPE} fp8 or auto", is_of_release=True)


def _read_backend(settings: Settings) -> str:
    """Return the name of the backend that is set; empty if vLLM chooses."""
    name = settings.get(ATTENTION_BACKEND) or read_json_key(settings, ATTENTION_CONFIG, "backend")
    return "" if not isinstance(name, str) or name.lower() == "auto" else name


def _describe_layer(
    accelerator: str, facts: Facts, model: ModelFacts, lists: VllmLists, settings: Settings
) -> Layer | None:
    """Return what the model's layers ask; None if these choose their backends, or if that is not known."""
    geometry = model.geometry
    if geometry is None or geometry.compressed or model.pooling or model.architecture.startswith(BY_MODEL):
        return None
    latent = bool(geometry.latent) and settings.get(NO_LATENT) != "1"
    if geometry.latent and model.model_type not in (lists.names("latent_types") or ()):
        return None
    dtype = str(settings.get(DTYPE) or "auto")
    dtype = (model.dtype if dtype == "auto" else TYPES.get(dtype, dtype)).removeprefix("torch.")
    cache_type = str(settings.get(CACHE_TYPE) or "auto")
    if cache_type.startswith(("turboquant", "ultraquant", "octave")):  # some layers keep the type of the model
        cache_type = "auto"
    block = str(settings.get(BLOCK_SIZE) or "")
    capabilities = [parse_version_numbers(device.architecture) for device in facts.devices]
    is_known = accelerator == "cuda" and capabilities and all(capabilities)
    return Layer(
        latent,
        geometry.sparse and latent,
        model.architecture in WITH_SINKS,
        geometry.latent if latent else geometry.head_size,
        dtype if dtype in ("float16", "bfloat16", "float32") else "",
        cache_type if cache_type != "auto" else "",
        int(block) if block.isdecimal() and not geometry.states else 0,  # layers with a state change the blocks' size
        min(capabilities) if is_known else (),
    )


def _refused_on_cpu(layer: Layer, backends: Mapping[str, Mapping[str, Any]]) -> Iterator[Refusal]:
    """Yield blocks that the kernel does not divide. Source: v1/worker/utils.py, select_common_block_size.

    For latent attention the platform replaces the size by its own.
    """
    sizes = backends.get("CPU_ATTN", {}).get("block_sizes", ())
    if layer.block and not layer.latent and sizes and all(layer.block % size for size in sizes):
        problem = f"{BLOCK_SIZE} {layer.block}, for which the attention backend has no kernel"
        yield Refusal(BLOCK_SIZE, problem, f"a multiple of {' or '.join(map(str, sizes))}")


def _refused_backend(accelerator: str, name: str, layer: Layer, lists: VllmLists) -> Iterator[Refusal]:
    """Yield the backend that the user names, if its class or the platform does not take it."""
    platform = next((value for start, value in OF_PLATFORM.items() if name.startswith(start)), accelerator)
    choices = lists.lists.get("attention_choices", {}).get(accelerator, ())
    if platform != accelerator or (accelerator == "rocm" and any(part in name for part in OF_NVIDIA)):
        yield Refusal(name, f"{ATTENTION_BACKEND} {name} on {accelerator}", _name_takers(accelerator, layer, lists))
    elif accelerator in CHOOSING and name not in choices:
        yield Refusal(name, f"{ATTENTION_BACKEND} {name} on {accelerator}", f"one of {', '.join(choices)}")
    elif accelerator in VALIDATING and accelerator in lists.lists.get("attention_priorities", {}):
        reasons = [*_find_reasons(lists.lists["attention_backends"][name], layer)]
        if reasons:
            problem = f"{ATTENTION_BACKEND} {name}, which does not take {', '.join(reasons)}"
            yield Refusal(name, problem, _name_takers(accelerator, layer, lists))


def _refused_by_all(accelerator: str, layer: Layer, lists: VllmLists) -> Iterator[Refusal]:
    """Yield the type of the cache or the size of its blocks that none of the platform's backends takes."""
    if not (layer.cache_type or layer.block) or not [*_find_takers(accelerator, _without_options(layer), lists)]:
        return
    if [*_find_takers(accelerator, layer, lists)]:
        return
    backends = lists.lists["attention_backends"]
    taking = [*_find_takers(accelerator, layer._replace(block=0), lists)]
    if layer.block and taking:
        sizes = sorted({size for name in taking for size in backends[name].get("block_sizes", ())})
        problem = f"{BLOCK_SIZE} {layer.block}, for which no attention backend has a kernel"
        yield Refusal(BLOCK_SIZE, problem, f"a multiple of {' or '.join(map(str, sizes))}")
        return
    taking = [*_find_takers(accelerator, _without_options(layer), lists)]
    types = sorted({word for name in taking for word in backends[name].get("kv_cache_dtypes", ())})
    problem = f"{CACHE_TYPE} {layer.cache_type}, which no attention backend takes for this model on {accelerator}"
    yield Refusal(layer.cache_type, problem, f"one of {', '.join(types)}")


def _without_options(layer: Layer) -> Layer:
    return layer._replace(cache_type="", block=0)


def _name_takers(accelerator: str, layer: Layer, lists: VllmLists) -> str:
    names = [*_find_takers(accelerator, layer, lists)]
    return f"one of {', '.join(names)}, or none, so that vLLM chooses" if names else "none, so that vLLM chooses"


def _find_takers(accelerator: str, layer: Layer, lists: VllmLists) -> Iterator[str]:
    """Yield the backends of the platform that take a layer, as far as their lists tell.

    One without a list is composed of two others, each of which has its own.
    """
    backends = lists.lists["attention_backends"]
    for name in lists.lists.get("attention_priorities", {}).get(accelerator, ()):
        if backends.get(name) and not [*_find_reasons(backends[name], layer)]:
            yield name


def _find_reasons(backend: Mapping[str, Any], layer: Layer) -> Iterator[str]:
    """Yield what of a layer the class of a backend does not take."""
    if backend.get("mla", layer.latent) != layer.latent:
        yield "latent attention (MLA)" if layer.latent else "models without latent attention (MLA)"
    elif layer.latent and backend.get("sparse", layer.sparse) != layer.sparse:
        yield "sparse attention" if layer.sparse else "models without sparse attention"
    if layer.sinks and backend.get("sinks") is False:
        yield "attention sinks"
    if layer.dtype and layer.dtype not in backend.get("dtypes", (layer.dtype,)):
        yield f"{layer.dtype}"
    if layer.head_size not in backend.get("head_sizes", (layer.head_size,)):
        yield f"heads of {layer.head_size} numbers"
    if layer.cache_type and not _takes_cache_type(backend, layer):
        yield f"{CACHE_TYPE} {layer.cache_type}"
    if layer.block and all(layer.block % size for size in backend.get("block_sizes", (1,))):
        yield f"{BLOCK_SIZE} {layer.block}"
    if layer.capability and not _has_capability(backend.get("capability", {}), layer.capability):
        yield f"compute capability {'.'.join(map(str, layer.capability))}"


def _takes_cache_type(backend: Mapping[str, Any], layer: Layer) -> bool:
    types = backend.get("kv_cache_dtypes", (layer.cache_type,))
    return layer.cache_type in types or (layer.sparse and layer.cache_type in FP8 and PACKED_FP8 in types)


def _has_capability(limits: Mapping[str, Any], capability: tuple[int, ...]) -> bool:
    if capability[0] not in limits.get("majors", capability[:1]):
        return False
    return tuple(limits.get("least", ())) <= capability <= tuple(limits.get("most", capability))
