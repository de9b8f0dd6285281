"""vLLM on AMD GPUs: devices, kernels, links. Pure.

Sources: vLLM 0.27's platforms/rocm.py, _aiter_ops.py and utils/numa_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import DOES_NOT_FIT, HOST, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Notice, Value
from entrypoints.decide.kernels_by_architecture import AITER, choose_kernels
from entrypoints.decide.parallelism.experts import beside_adapters, experts_on_gpus
from entrypoints.decide.parallelism.fit import Fit, Rules, fit_with_smaller_steps
from entrypoints.decide.parallelism.hosts import make_reach_fields
from entrypoints.decide.parallelism.offload import PRIVATE
from entrypoints.decide.parallelism.visible import chosen_by, restrict_to_visible
from entrypoints.decide.records import Decision, Thresholds
from entrypoints.facts.derived import derive_facts
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


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set.

    Raises HOST if the image has no kernels for any of the GPUs, and the errors of `fit_model`.
    """
    thresholds = Thresholds(profile["thresholds"])
    usable, foreign = _with_kernels(facts, thresholds)
    usable = restrict_to_visible(usable, user_flags, (VISIBLE, ALSO_VISIBLE))
    devices = beside_adapters(make_rocm_rules(usable, thresholds, user_flags), user_flags, profile["vllm"])
    try:
        fit_result, steps = fit_with_smaller_steps(usable, model, user_flags, devices, profile["vllm"])
    except EntrypointError as error:
        raise _with_limits(error, facts) from error
    values = {
        **fit_result.values,
        **steps,
        **_choose_hip_gpus(facts, fit_result, user_flags),
        **_choose_aiter_kernels(fit_result, model, thresholds),
        **choose_kernels(profile, _list_architectures(fit_result), model, user_flags),
        **_choose_rccl_settings(usable, fit_result, thresholds),
        **_choose_numa_binding(usable, fit_result, user_flags),
    }
    findings = (*fit_result.findings, *foreign, *_find_rocm_notices(fit_result, model, user_flags, thresholds))
    return Decision(values, findings, uses=fit_result.uses)


def _with_limits(error: EntrypointError, facts: Facts) -> EntrypointError:
    """Return the error with the limits of a GPU that is part of the processor, where memory is what is missing."""
    if error.code not in (HOST, DOES_NOT_FIT) or COUNTED not in facts.kernel:
        return error
    names = {COUNTED: "counted", "apu_vram_mib": "carved out by the firmware", "apu_gtt_mib": "shared (GTT)"}
    sizes = (f"{facts.kernel[name]} MiB {text}" for name, text in names.items() if name in facts.kernel)
    message = f"{error.message}; the GPU is part of the processor: {', '.join(sizes)}"
    return EntrypointError(error.code, message, _RAISE_LIMIT)


def make_rocm_rules(facts: Facts, thresholds: Thresholds, user_flags: UserFlags) -> Rules:
    """Return the rules for AMD's GPUs; a tensor-parallel size that the user set is not held against AITER's kernels."""
    free = user_flags.number(TENSOR) is not None or not _uses_aiter(facts, thresholds, user_flags)
    return Rules(
        **make_reach_fields(thresholds),
        usable=thresholds.number("usable_memory_share"),
        reserved=thresholds.bytes("reserved_gib"),
        activations=thresholds.bytes("activations_gib"),
        expert=experts_on_gpus(user_flags),
        shortest_context=thresholds.whole("shortest_context"),
        free=facts.memory.available if _shares_memory(facts) else None,
        latent_heads=() if free else tuple(map(int, thresholds.words("latent_heads"))),
        offload=PRIVATE,
    )


def _shares_memory(facts: Facts) -> bool:
    """Return whether the kernel counts the host's memory as that of a GPU which is part of the processor."""
    counted, carved = (facts.kernel.get(name, "0") for name in (COUNTED, "apu_vram_mib"))
    return int(counted) > int(carved)


def _uses_aiter(facts: Facts, thresholds: Thresholds, user_flags: UserFlags) -> bool:
    """Return whether AITER's kernels compute latent attention."""
    supported = thresholds.words("aiter_architectures")
    off = "0" in (user_flags.variable(AITER), user_flags.variable(f"{AITER}_MLA"))
    return not off and bool(supported) and {device.architecture for device in facts.devices} <= set(supported)


def _with_kernels(facts: Facts, thresholds: Thresholds) -> tuple[Facts, tuple[Notice, ...]]:
    """Exclude GPUs that the image has no kernels for, such as integrated graphics. Raises HOST."""
    compiled = thresholds.words("compiled_architectures")
    devices = tuple(device for device in facts.devices if device.architecture in ("", *compiled))
    foreign_devices = tuple(device for device in facts.devices if device not in devices)
    if foreign_devices and not devices:
        foreign_names = ", ".join(sorted({f"{device.name} ({device.architecture})" for device in foreign_devices}))
        message = f"this image has kernels for {', '.join(compiled)}, the host has {foreign_names}"
        raise EntrypointError(HOST, message, "use an image that is built for these GPUs; docs/rocm.md lists the images")
    return facts._replace(devices=devices), tuple(_left_out(foreign_devices, compiled))


def _left_out(foreign_devices: tuple[Device, ...], compiled: tuple[str, ...]) -> Iterator[Notice]:
    """Yield a notice with the excluded GPUs."""
    if foreign_devices:
        foreign_names = "; ".join(
            f"{device.number}: {device.name} {device.architecture}".rstrip() for device in foreign_devices
        )
        yield make_notice("ROCM-030", foreign_names, f"one of {', '.join(compiled)}")


def _choose_hip_gpus(facts: Facts, chosen: Fit, user_flags: UserFlags) -> dict[str, Value]:
    """Set the visible GPUs if they are a part of all GPUs, or in another order."""
    numbers = tuple(device.number for device in chosen.devices)
    if chosen_by(user_flags, (VISIBLE, ALSO_VISIBLE)) or numbers == tuple(device.number for device in facts.devices):
        return {}
    because = f"the chosen GPUs out of {len(facts.devices)}, by HIP's numbers, which can differ from amd-smi's"
    instead = (f"{ALSO_VISIBLE}: deprecated on ROCm, and its value would have to be the same",)
    return {VISIBLE: Value(",".join(map(str, numbers)), because, instead)}


# --- kernels --------------------------------------------------------------------------------------------------------


def _list_architectures(chosen: Fit) -> set[str]:
    return {device.architecture for device in chosen.devices}


def _choose_aiter_kernels(chosen: Fit, model: ModelFacts, thresholds: Thresholds) -> dict[str, Value]:
    """Choose AMD's own kernels where they are known to be correct and faster."""
    values: dict[str, Value] = {}
    supported = thresholds.words("aiter_architectures")
    if supported and _list_architectures(chosen) <= set(supported):
        because = f"AMD's kernels for {', '.join(supported)}: attention, GEMM, experts and norms"
        values[AITER] = Value(
            "1", because, ("0, vLLM's default: the kernels of Triton and vLLM, which are slower on these GPUs",)
        )
        because = "hipBLASLt multiplies matrices faster on Instinct GPUs"
        values["TORCH_BLAS_PREFER_HIPBLASLT"] = Value("1", because, ("unset: PyTorch chooses by heuristics",))
    elif supported:
        architectures = ", ".join(sorted(_list_architectures(chosen)))
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


def _choose_rccl_settings(facts: Facts, chosen: Fit, thresholds: Thresholds) -> dict[str, Value]:
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


def _choose_numa_binding(facts: Facts, chosen: Fit, user_flags: UserFlags) -> dict[str, Value]:
    """Bind each worker to its GPU's NUMA node."""
    nodes = sorted({device.node for device in chosen.devices if device.node is not None})
    has_all_nodes = all(device.node is not None for device in chosen.devices)
    if (
        NUMA not in user_flags.known
        or not has_all_nodes
        or len(facts.nodes) < 2  # noqa: PLR2004 - several nodes
        or derive_facts(facts).get("mempolicy") != "allowed"
    ):
        return {}
    node_list = format_id_list(tuple(nodes))
    because = f"the GPUs are on NUMA nodes {node_list}; each worker runs and allocates memory on its GPU's node"
    threads = "ROCm's own threads stay on the cores that their process is bound to"
    return {
        NUMA: Value(value=True, because=because, instead=("unset: workers move between processors",)),
        "HSA_OVERRIDE_CPU_AFFINITY_DEBUG": Value("0", threads),
    }


# --- notices --------------------------------------------------------------------------------------------------------


def _find_rocm_notices(
    chosen: Fit, model: ModelFacts, user_flags: UserFlags, thresholds: Thresholds
) -> Iterator[Notice]:
    """Yield notices about settings of the user or the model that are kept but have a cost."""
    architectures = _list_architectures(chosen)
    method = user_flags.flag("--quantization") or model.quantization
    supported, fp8 = thresholds.words("aiter_architectures"), thresholds.words("fp8_architectures")
    if user_flags.variable(AITER) == "1" and not architectures <= set(supported):
        yield make_notice("ROCM-031", ", ".join(sorted(architectures)), ", ".join(supported) or "none at this version")
    if method and method not in thresholds.words("quantization_methods"):
        yield make_notice("ROCM-032", method, f"one of {', '.join(thresholds.words('quantization_methods'))}")
    if "fp8" in method and not architectures <= set(fp8):
        yield make_notice("ROCM-033", ", ".join(sorted(architectures)), f"one of {', '.join(fp8)}")
    if "fp8" in method and architectures & set(thresholds.words("fnuz_architectures")):
        yield make_notice("ROCM-034", f"{method} on {', '.join(sorted(architectures))}", "nothing else")
    mx = thresholds.words("microscaling_architectures")
    if "mx" in method and not architectures <= set(mx):
        yield make_notice("ROCM-035", f"{method} on {', '.join(sorted(architectures))}", "nothing else")
