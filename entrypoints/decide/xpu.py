"""vLLM on Intel GPUs: which GPUs, type, executor. Pure.

What vLLM makes of these settings was read in its platforms/xpu.py and v1/worker/xpu_worker.py (0.27), and in the
manual of 0.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import notice
from entrypoints.core.records import Device, Facts, Notice
from entrypoints.decide.records import Decision, Thresholds, Value
from entrypoints.decide.spread.fit import Fit, Rules, fit
from entrypoints.decide.spread.visible import chosen_by, restricted
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import DTYPE, EXECUTOR
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "ZE_AFFINITY_MASK"


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Decide all that the user did not. Raises what `fit` raises."""
    thresholds = Thresholds(profile["thresholds"])
    usable = restricted(facts, given, (VISIBLE,))
    chosen = fit(usable, model, given, rules(thresholds))
    values = {
        **chosen.values,
        **_executor(chosen, thresholds),
        **_visible(facts, chosen, given),
        **_dtype(profile, chosen, thresholds),
    }
    return Decision(values, (*chosen.findings, *_advice(chosen, model, given, thresholds)))


def rules(thresholds: Thresholds) -> Rules:
    """Return what Intel's GPUs allow."""
    return Rules(
        usable=thresholds.number("usable_memory_share"),
        reserved=thresholds.bytes("reserved_gib"),
        activations=thresholds.bytes("activations_gib"),
        block=thresholds.whole("block_tokens"),
        expert="needed",
        shortest_context=thresholds.whole("shortest_context"),
        executors=thresholds.words("executors"),
    )


def _executor(chosen: Fit, thresholds: Thresholds) -> dict[str, Value]:
    """Take Ray where a version knows nothing else and one GPU does not do."""
    if thresholds.words("executors") != ("ray",) or chosen.tensor * chosen.pipeline == 1:
        return {}
    because = "this version runs several Intel GPUs under Ray alone, and starts it where none runs"
    return {EXECUTOR: Value("ray", because, ("mp: it would fall back to Ray",))}


def _visible(facts: Facts, chosen: Fit, given: UserFlags) -> dict[str, Value]:
    """Name the chosen GPUs where Level Zero would count others too, or in another order."""
    numbers = tuple(device.number for device in chosen.devices)
    if chosen_by(given, (VISIBLE,)) or numbers == tuple(range(len(facts.devices))):
        return {}
    because = f"of {len(facts.devices)} GPUs these serve, by Level Zero's numbers in the order of PCI addresses"
    if facts.devices and facts.devices[0].number:
        because = "the processor's own graphics has the first number, and is left out"
    instead = ("ONEAPI_DEVICE_SELECTOR: hides devices from SYCL alone, while oneCCL counts them",)
    return {VISIBLE: Value(",".join(map(str, numbers)), because, instead)}


# --- type -----------------------------------------------------------------------------------------------------------


def _dtype(profile: Mapping[str, Any], chosen: Fit, thresholds: Thresholds) -> dict[str, Value]:
    """Choose float16 where bfloat16 goes wrong, elsewhere the stack's type, else the model's own."""
    without = [device for device in chosen.devices if not computes_bfloat16(device, thresholds)]
    if not without and any(item["setting"] == DTYPE for item in profile["settings"]):
        return {}
    if not without:
        because = f"the type that the model is stored in: {chosen.devices[0].name} computes float16 and bfloat16"
        return {DTYPE: Value("auto", because, ("another 16-bit type: it rounds the weights and computes no faster",))}
    because = f"{without[0].name} does not compute bfloat16 rightly in this version"
    return {
        DTYPE: Value("float16", because, ("bfloat16: vLLM refuses it, or answers wrongly", "float32: twice the memory"))
    }


def computes_bfloat16(device: Device, thresholds: Thresholds) -> bool:
    """Tell whether a GPU's bfloat16 is right: on Data Center GPUs always, on Arc cards of some generations."""
    return "data center" in device.name.lower() or device.architecture in (
        "",
        *thresholds.words("arc_bfloat16_architectures"),
    )


# --- what is to be said ---------------------------------------------------------------------------------------------


def _advice(chosen: Fit, model: ModelFacts, given: UserFlags, thresholds: Thresholds) -> Iterator[Notice]:
    """Say what the user's or the model's own choice costs here; it is kept."""
    without = [device.name for device in chosen.devices if not computes_bfloat16(device, thresholds)]
    if given.flag(DTYPE) == "bfloat16" and without:
        yield notice("XPU-031", without[0], "float16")
    method = given.flag("--quantization") or model.quantization
    if method and method not in thresholds.words("quantization_methods"):
        yield notice("XPU-032", method, f"one of {', '.join(thresholds.words('quantization_methods'))}")
    if chosen.pipeline > 1:
        yield notice("PLAN-036", f"{chosen.pipeline} stages of {chosen.tensor}", "tensor parallelism alone")
