"""vLLM on AMD GPUs: devices, kernels, links. Pure.

Sources: vLLM 0.27's platforms/rocm.py, _aiter_ops.py and utils/numa_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import notice
from entrypoints.core.errors import DOES_NOT_FIT, HOST, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Notice, Value
from entrypoints.decide.kernels_by_architecture import AITER, choose_kernels
from entrypoints.decide.parallelism.experts import beside_adapters, experts_on_gpus
from entrypoints.decide.parallelism.fit import Fit, Rules, fit
from entrypoints.decide.parallelism.hosts import reach
from entrypoints.decide.parallelism.offload import PRIVATE
from entrypoints.decide.parallelism.visible import chosen_by, restricted
from entrypoints.decide.records import Decision, Thresholds
from entrypoints.facts.derived import derive
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import NUMA, TENSOR
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "HIP_VISIBLE_DEVICES"
ALSO_VISIBLE = "CUDA_VISIBLE_DEVICES"
"""HIP reads this variable too; vLLM refuses to start if the two differ (platforms/rocm.py)."""
CK = "VLLM_USE_TRITON_FLASH_ATTN"
COUNTED = "apu_memory_mib"
"""Fact: the memory that the kernel counts as that of a GPU which is part of the processor."""
_RAISE_LIMIT = (
    "raise the GPU's memory in the firmware (UMA frame buffer size); or boot Linux 6.10 or later, which counts shared"
    " memory (GTT), and raise ttm.pages_limit on its command line, in pages of 4 KiB: 96 GiB are 25165824"
)


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Choose every setting that the user did not set.

    Raises HOST if the image has no kernels for any of the GPUs, and the errors of `fit`.
    """
    thresholds = Thresholds(profile["thresholds"])
    usable, foreign = _with_kernels(facts, thresholds)
    usable = restricted(usable, given, (VISIBLE, ALSO_VISIBLE))
    devices = beside_adapters(rules(usable, thresholds, given), given, profile["vllm"])
    try:
        chosen = fit(usable, model, given, devices)
    except EntrypointError as error:
        raise _with_limits(error, facts) from error
    values = {
        **chosen.values,
        **_visible(facts, chosen, given),
        **_kernels(chosen, model, thresholds),
        **choose_kernels("rocm", _architectures(chosen), model, given),
        **_links(usable, chosen, thresholds),
        **_binding(usable, chosen, given),
    }
    findings = (*chosen.findings, *foreign, *_notices(chosen, model, given, thresholds))
    return Decision(values, findings, uses=chosen.uses)


def _with_limits(error: EntrypointError, facts: Facts) -> EntrypointError:
    """Return the error with the limits of a GPU that is part of the processor, where memory is what is missing."""
    if error.code not in (HOST, DOES_NOT_FIT) or COUNTED not in facts.kernel:
        return error
    names = {COUNTED: "counted", "apu_vram_mib": "carved out by the firmware", "apu_gtt_mib": "shared (GTT)"}
    sizes = (f"{facts.kernel[name]} MiB {text}" for name, text in names.items() if name in facts.kernel)
    message = f"{error.message}; the GPU is part of the processor: {', '.join(sizes)}"
    return EntrypointError(error.code, message, _RAISE_LIMIT)


def rules(facts: Facts, thresholds: Thresholds, given: UserFlags) -> Rules:
    """Return the rules for AMD's GPUs; a tensor-parallel size that the user set is not held against AITER's kernels."""
    free = given.number(TENSOR) is not None or not _uses_aiter(facts, thresholds, given)
    return Rules(
        **reach(thresholds),
        usable=thresholds.number("usable_memory_share"),
        reserved=thresholds.bytes("reserved_gib"),
        activations=thresholds.bytes("activations_gib"),
        expert=experts_on_gpus(given),
        shortest_context=thresholds.whole("shortest_context"),
        free=facts.memory.available if _shares_memory(facts) else None,
        latent_heads=() if free else tuple(map(int, thresholds.words("latent_heads"))),
        offload=PRIVATE,
    )


def _shares_memory(facts: Facts) -> bool:
    """Return whether the kernel counts the host's memory as that of a GPU which is part of the processor."""
    counted, carved = (facts.kernel.get(name, "0") for name in (COUNTED, "apu_vram_mib"))
    return int(counted) > int(carved)


def _uses_aiter(facts: Facts, thresholds: Thresholds, given: UserFlags) -> bool:
    """Return whether AITER's kernels compute latent attention."""
    supported = thresholds.words("aiter_architectures")
    off = "0" in (given.variable(AITER), given.variable(f"{AITER}_MLA"))
    return not off and bool(supported) and {device.architecture for device in facts.devices} <= set(supported)


def _with_kernels(facts: Facts, thresholds: Thresholds) -> tuple[Facts, tuple[Notice, ...]]:
    """Exclude GPUs that the image has no kernels for, such as integrated graphics. Raises HOST."""
    compiled = thresholds.words("compiled_architectures")
    devices = tuple(device for device in facts.devices if device.architecture in ("", *compiled))
    others = tuple(device for device in facts.devices if device not in devices)
    if others and not devices:
        found = ", ".join(sorted({f"{device.name} ({device.architecture})" for device in others}))
        message = f"this image has kernels for {', '.join(compiled)}, the host has {found}"
        raise EntrypointError(HOST, message, "use an image that is built for these GPUs; docs/rocm.md lists the images")
    return facts._replace(devices=devices), tuple(_left_out(others, compiled))


def _left_out(others: tuple[Device, ...], compiled: tuple[str, ...]) -> Iterator[Notice]:
    """Yield a notice with the excluded GPUs."""
    if others:
        found = "; ".join(f"{device.number}: {device.name} {device.architecture}".rstrip() for device in others)
        yield notice("ROCM-030", found, f"one of {', '.join(compiled)}")


def _visible(facts: Facts, chosen: Fit, given: UserFlags) -> dict[str, Value]:
    """Set the visible GPUs if they are a part of all GPUs, or in another order."""
    numbers = tuple(device.number for device in chosen.devices)
    if chosen_by(given, (VISIBLE, ALSO_VISIBLE)) or numbers == tuple(device.number for device in facts.devices):
        return {}
    because = f"the chosen GPUs out of {len(facts.devices)}, by HIP's numbers, which can differ from amd-smi's"
    instead = (f"{ALSO_VISIBLE}: deprecated on ROCm, and its value would have to be the same",)
    return {VISIBLE: Value(",".join(map(str, numbers)), because, instead)}


# --- kernels --------------------------------------------------------------------------------------------------------


def _architectures(chosen: Fit) -> set[str]:
    return {device.architecture for device in chosen.devices}


def _kernels(chosen: Fit, model: ModelFacts, thresholds: Thresholds) -> dict[str, Value]:
    """Choose AMD's own kernels where they are known to be correct and faster."""
    values: dict[str, Value] = {}
    supported = thresholds.words("aiter_architectures")
    if supported and _architectures(chosen) <= set(supported):
        because = f"AMD's kernels for {', '.join(supported)}: attention, GEMM, experts and norms"
        values[AITER] = Value(
            "1", because, ("0, vLLM's default: the kernels of Triton and vLLM, which are slower on these GPUs",)
        )
        because = "hipBLASLt multiplies matrices faster on Instinct GPUs"
        values["TORCH_BLAS_PREFER_HIPBLASLT"] = Value("1", because, ("unset: PyTorch chooses by heuristics",))
    elif supported:
        architectures = ", ".join(sorted(_architectures(chosen)))
        instead = (f"1: supported only on {', '.join(supported)}",)
        values[AITER] = Value("0", f"AITER has no kernels for {architectures}", instead)
    sliding = model.geometry is not None and model.geometry.sliding_layers > 0
    if sliding and thresholds.table["ck_attention_for_sliding_windows"]["value"]:
        because = (
            "the model uses sliding-window attention, which Triton's flash attention does not support in this version"
        )
        values[CK] = Value("0", because, ("1, vLLM's default: would attend to the whole context",))
    return values


# --- links and processors -------------------------------------------------------------------------------------------


def _links(facts: Facts, chosen: Fit, thresholds: Thresholds) -> dict[str, Value]:
    """Set RCCL's variables for the links between the chosen GPUs."""
    numbers = {device.number for device in chosen.devices}
    kinds = {link.kind for link in facts.links if link.first in numbers and link.second in numbers}
    if kinds == {"XGMI"} and len(numbers) >= thresholds.whole("rccl_channels_from"):
        because = f"RCCL needs this many channels to use all xGMI links between {len(numbers)} GPUs"
        value = str(thresholds.whole("rccl_channels"))
        return {"NCCL_MIN_NCHANNELS": Value(value, because, ("unset: RCCL chooses fewer channels",))}
    if "PCIE" in kinds:
        because = "the GPUs are linked over PCIe; RCCL copies directly between them only with this setting"
        return {"HSA_FORCE_FINE_GRAIN_PCIE": Value("1", because, ("unset: every transfer goes through host memory",))}
    return {}


def _binding(facts: Facts, chosen: Fit, given: UserFlags) -> dict[str, Value]:
    """Bind each worker to its GPU's NUMA node."""
    nodes = sorted({device.node for device in chosen.devices if device.node is not None})
    known = all(device.node is not None for device in chosen.devices)
    if NUMA not in given.known or not known or len(facts.nodes) < 2 or derive(facts).get("mempolicy") != "allowed":  # noqa: PLR2004 - several nodes
        return {}
    node_list = format_id_list(tuple(nodes))
    because = f"the GPUs are on NUMA nodes {node_list}; each worker runs and allocates memory on its GPU's node"
    threads = "ROCm's own threads stay on the cores that their process is bound to"
    return {
        NUMA: Value(value=True, because=because, instead=("unset: workers move between processors",)),
        "HSA_OVERRIDE_CPU_AFFINITY_DEBUG": Value("0", threads),
    }


# --- notices --------------------------------------------------------------------------------------------------------


def _notices(chosen: Fit, model: ModelFacts, given: UserFlags, thresholds: Thresholds) -> Iterator[Notice]:
    """Yield notices about settings of the user or the model that are kept but have a cost."""
    architectures = _architectures(chosen)
    method = given.flag("--quantization") or model.quantization
    supported, fp8 = thresholds.words("aiter_architectures"), thresholds.words("fp8_architectures")
    if given.variable(AITER) == "1" and not architectures <= set(supported):
        yield notice("ROCM-031", ", ".join(sorted(architectures)), ", ".join(supported) or "none at this version")
    if method and method not in thresholds.words("quantization_methods"):
        yield notice("ROCM-032", method, f"one of {', '.join(thresholds.words('quantization_methods'))}")
    if "fp8" in method and not architectures <= set(fp8):
        yield notice("ROCM-033", ", ".join(sorted(architectures)), f"one of {', '.join(fp8)}")
    if "fp8" in method and architectures & set(thresholds.words("fnuz_architectures")):
        yield notice("ROCM-034", f"{method} on {', '.join(sorted(architectures))}", "nothing else")
    mx = thresholds.words("microscaling_architectures")
    if "mx" in method and not architectures <= set(mx):
        yield notice("ROCM-035", f"{method} on {', '.join(sorted(architectures))}", "nothing else")
