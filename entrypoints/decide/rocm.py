"""vLLM on AMD GPUs: which GPUs, kernels, links between them. Pure.

What vLLM 0.27 makes of these settings was read in its platforms/rocm.py, _aiter_ops.py and utils/numa_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import notice
from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Notice
from entrypoints.decide.records import Decision, Thresholds, Value
from entrypoints.decide.spread.fit import Fit, Rules, fit
from entrypoints.decide.spread.visible import chosen_by, restricted
from entrypoints.facts.derived import derive
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "HIP_VISIBLE_DEVICES"
ALSO_VISIBLE = "CUDA_VISIBLE_DEVICES"
"""HIP obeys it too; vLLM refuses to start where the two differ (platforms/rocm.py)."""
AITER = "VLLM_ROCM_USE_AITER"
CK = "VLLM_USE_TRITON_FLASH_ATTN"
NUMA = "--numa-bind"


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Decide all that the user did not.

    Raises HOST where no GPU is here that the image has kernels for, and what `fit` raises.
    """
    thresholds = Thresholds(profile["thresholds"])
    usable, foreign = _with_kernels(facts, thresholds)
    usable = restricted(usable, given, (VISIBLE, ALSO_VISIBLE))
    chosen = fit(usable, model, given, rules(thresholds))
    values = {
        **chosen.values,
        **_visible(facts, chosen, given),
        **_kernels(chosen, model, thresholds),
        **_links(usable, chosen, thresholds),
        **_binding(usable, chosen, given),
    }
    findings = (*chosen.findings, *foreign, *_advice(chosen, model, given, thresholds))
    return Decision(values, findings)


def rules(thresholds: Thresholds) -> Rules:
    """Return what AMD's GPUs allow."""
    return Rules(
        usable=thresholds.number("usable_memory_share"),
        reserved=thresholds.bytes("reserved_gib"),
        activations=thresholds.bytes("activations_gib"),
        expert="needed",
        shortest_context=thresholds.whole("shortest_context"),
    )


def _with_kernels(facts: Facts, thresholds: Thresholds) -> tuple[Facts, tuple[Notice, ...]]:
    """Leave out GPUs that the image has no kernels for, such as a processor's own graphics. Raises HOST."""
    compiled = thresholds.words("compiled_architectures")
    devices = tuple(device for device in facts.devices if device.architecture in ("", *compiled))
    others = tuple(device for device in facts.devices if device not in devices)
    if others and not devices:
        found = ", ".join(sorted({f"{device.name} ({device.architecture})" for device in others}))
        message = f"this image has kernels for {', '.join(compiled)}, here is {found}"
        raise EntrypointError(HOST, message, "take another target: `invoke matrix` lists them, `check` names what fits")
    return facts._replace(devices=devices), tuple(_left_out(others, compiled))


def _left_out(others: tuple[Device, ...], compiled: tuple[str, ...]) -> Iterator[Notice]:
    """Yield which GPUs are not used."""
    if others:
        found = "; ".join(f"{device.number}: {device.name} {device.architecture}".rstrip() for device in others)
        yield notice("ROCM-030", found, f"one of {', '.join(compiled)}")


def _visible(facts: Facts, chosen: Fit, given: UserFlags) -> dict[str, Value]:
    """Name the chosen GPUs where they are not all of them, in their order."""
    numbers = tuple(device.number for device in chosen.devices)
    if chosen_by(given, (VISIBLE, ALSO_VISIBLE)) or numbers == tuple(device.number for device in facts.devices):
        return {}
    because = f"of {len(facts.devices)} GPUs these serve, in HIP's numbers, which amd-smi's need not be"
    instead = (f"{ALSO_VISIBLE}: deprecated on ROCm, and it would have to be the same",)
    return {VISIBLE: Value(",".join(map(str, numbers)), because, instead)}


# --- kernels --------------------------------------------------------------------------------------------------------


def _architectures(chosen: Fit) -> set[str]:
    return {device.architecture for device in chosen.devices}


def _kernels(chosen: Fit, model: ModelFacts, thresholds: Thresholds) -> dict[str, Value]:
    """Choose AMD's own kernels where they are known to be right and faster."""
    values: dict[str, Value] = {}
    supported = thresholds.words("aiter_architectures")
    if supported and _architectures(chosen) <= set(supported):
        because = f"AMD's kernels for {', '.join(supported)}: attention, GEMM, experts and norms"
        values[AITER] = Value("1", because, ("0, vLLM's own: Triton's and vLLM's kernels, which are slower here",))
        because = "hipBLASLt has the faster matrix products on Instinct"
        values["TORCH_BLAS_PREFER_HIPBLASLT"] = Value("1", because, ("unset: PyTorch picks by heuristics",))
    elif supported:
        here = ", ".join(sorted(_architectures(chosen)))
        values[AITER] = Value("0", f"AITER has no kernels for {here}", (f"1: only for {', '.join(supported)}",))
    sliding = model.geometry is not None and model.geometry.sliding_layers > 0
    if sliding and thresholds.table["ck_attention_for_sliding_windows"]["value"]:
        because = "this model has sliding windows, which Triton's flash attention lacks in this version"
        values[CK] = Value("0", because, ("1, vLLM's own: would attend to the whole context",))
    return values


# --- links and processors -------------------------------------------------------------------------------------------


def _links(facts: Facts, chosen: Fit, thresholds: Thresholds) -> dict[str, Value]:
    """Set what RCCL needs for the links that join the chosen GPUs."""
    numbers = {device.number for device in chosen.devices}
    kinds = {link.kind for link in facts.links if link.first in numbers and link.second in numbers}
    if kinds == {"XGMI"} and len(numbers) >= thresholds.whole("rccl_channels_from"):
        because = f"{len(numbers)} GPUs linked by xGMI: RCCL uses more of the links with so many channels"
        value = str(thresholds.whole("rccl_channels"))
        return {"NCCL_MIN_NCHANNELS": Value(value, because, ("unset: RCCL picks fewer",))}
    if "PCIE" in kinds:
        because = "the driver links these GPUs over PCIe, and RCCL copies from one to the other only with this"
        return {"HSA_FORCE_FINE_GRAIN_PCIE": Value("1", because, ("unset: every transfer goes through host memory",))}
    return {}


def _binding(facts: Facts, chosen: Fit, given: UserFlags) -> dict[str, Value]:
    """Bind each worker to the processor that its GPU hangs on."""
    nodes = sorted({device.node for device in chosen.devices if device.node is not None})
    known = all(device.node is not None for device in chosen.devices)
    if NUMA not in given.known or not known or len(facts.nodes) < 2 or derive(facts).get("mempolicy") != "allowed":  # noqa: PLR2004 - several nodes
        return {}
    because = (
        f"GPUs on NUMA nodes {format_id_list(tuple(nodes))}: each worker runs, and has its memory, next to its own"
    )
    threads = "threads of ROCm's own stay on the cores that their process was bound to"
    return {
        NUMA: Value(value=True, because=because, instead=("unset: workers wander between processors",)),
        "HSA_OVERRIDE_CPU_AFFINITY_DEBUG": Value("0", threads),
    }


# --- what is to be said ---------------------------------------------------------------------------------------------


def _advice(chosen: Fit, model: ModelFacts, given: UserFlags, thresholds: Thresholds) -> Iterator[Notice]:
    """Say what the user's or the model's own choice costs here; it is kept."""
    here = _architectures(chosen)
    method = given.flag("--quantization") or model.quantization
    supported, fp8 = thresholds.words("aiter_architectures"), thresholds.words("fp8_architectures")
    if given.variable(AITER) == "1" and not here <= set(supported):
        yield notice("ROCM-031", ", ".join(sorted(here)), ", ".join(supported) or "none at this version")
    if method and method not in thresholds.words("quantization_methods"):
        yield notice("ROCM-032", method, f"one of {', '.join(thresholds.words('quantization_methods'))}")
    if "fp8" in method and not here <= set(fp8):
        yield notice("ROCM-033", ", ".join(sorted(here)), f"one of {', '.join(fp8)}")
    if "fp8" in method and here & set(thresholds.words("fnuz_architectures")):
        yield notice("ROCM-034", f"{method} on {', '.join(sorted(here))}", "nothing else")
    mx = thresholds.words("microscaling_architectures")
    if "mx" in method and not here <= set(mx):
        yield notice("ROCM-035", f"{method} on {', '.join(sorted(here))}", "nothing else")
