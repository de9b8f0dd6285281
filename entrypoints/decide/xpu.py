"""vLLM on Intel GPUs: devices, type, executor. Pure.

Sources: vLLM 0.27's platforms/xpu.py and v1/worker/xpu_worker.py; the manual of 0.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.records import Device, Facts, Notice, Value
from entrypoints.decide.parallelism.experts import beside_adapters
from entrypoints.decide.parallelism.fit import Fit, Rules, fit_with_smaller_steps
from entrypoints.decide.parallelism.hosts import make_reach_fields
from entrypoints.decide.parallelism.offload import SHARED
from entrypoints.decide.parallelism.visible import chosen_by, restrict_to_visible
from entrypoints.decide.records import Decision, Thresholds
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import DTYPE, EXECUTOR, NO_LATENT, NO_WINDOW
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "ZE_AFFINITY_MASK"


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set. Raises the errors of `fit_model`."""
    thresholds = Thresholds(profile["thresholds"])
    usable = restrict_to_visible(facts, user_flags, (VISIBLE,))
    plain = _plain_attention(model, user_flags, thresholds)
    if plain and model.geometry:
        model = model._replace(geometry=model.geometry.without_latent)
    rules = beside_adapters(make_xpu_rules(thresholds), user_flags, profile["vllm"])
    fit_result, steps = fit_with_smaller_steps(usable, model, user_flags, rules, profile["vllm"])
    values = {
        **fit_result.values,
        **steps,
        **_choose_xpu_executor(fit_result, thresholds),
        **_keep_sliding_windows(profile, model),
        **plain,
        **_choose_level_zero_gpus(facts, fit_result, user_flags),
        **_choose_xpu_dtype(profile, fit_result, thresholds, user_flags.vllm.refuse_float16(model.model_type)),
    }
    return Decision(
        values,
        (*fit_result.findings, *_find_xpu_notices(fit_result, model, user_flags, thresholds)),
        uses=fit_result.uses,
    )


def make_xpu_rules(thresholds: Thresholds) -> Rules:
    """Return the rules for Intel's GPUs.

    Experts stay whole only where needed: llm-scaler lists expert parallelism as experimental, and serves mixtures of
    experts without it (vllm/README.md, Qwen3.6-35B-A3B; its 4-bit quantisation at load fails with it, issue 438).
    """
    return Rules(
        **make_reach_fields(thresholds),
        usable=thresholds.number("usable_memory_share"),
        reserved=thresholds.bytes("reserved_gib"),
        activations=thresholds.bytes("activations_gib"),
        block=thresholds.whole("block_tokens"),
        expert="needed",
        shortest_context=thresholds.whole("shortest_context"),
        executors=thresholds.words("executors"),
        offload=SHARED,
    )


def _choose_xpu_executor(chosen: Fit, thresholds: Thresholds) -> dict[str, Value]:
    """Choose Ray for several GPUs in versions that support no other executor."""
    if thresholds.words("executors") != ("ray",) or chosen.tensor * chosen.pipeline == 1:
        return {}
    because = "this version supports only Ray for several Intel GPUs, and starts Ray if none is running"
    return {EXECUTOR: Value("ray", because, ("mp: vLLM would fall back to Ray",))}


def _keep_sliding_windows(profile: Mapping[str, Any], model: ModelFacts) -> dict[str, Value]:
    """Leave sliding windows on where turning them off, as the stack does, cuts the model to one window."""
    is_off = any(item["setting"] == NO_WINDOW and item["value"] is True for item in profile["settings"])
    if not is_off or model.geometry is None or not model.geometry.is_cut_to_window:
        return {}
    window = model.geometry.window
    because = f"with it vLLM serves at most {window} tokens, the model's sliding window"
    return {NO_WINDOW: Value(value=False, because=because)}


def _plain_attention(model: ModelFacts, user_flags: UserFlags, thresholds: Thresholds) -> dict[str, Value]:
    """Compute latent attention as plain attention for the architectures that Intel serves in this way only."""
    latent = model.geometry is not None and model.geometry.latent > 0
    is_listed = model.architecture in thresholds.words("plain_attention_for")
    if not (latent and is_listed) or user_flags.variable(NO_LATENT) is not None:
        return {}
    because = f"Intel serves {model.architecture} with it; every head then has keys and values of its own"
    return {NO_LATENT: Value("1", because, ("0, vLLM's default: the kernels of latent attention",))}


def _choose_level_zero_gpus(facts: Facts, chosen: Fit, user_flags: UserFlags) -> dict[str, Value]:
    """Set the visible GPUs if Level Zero would count other GPUs, or in another order."""
    numbers = tuple(device.number for device in chosen.devices)
    if chosen_by(user_flags, (VISIBLE,)) or numbers == tuple(range(len(facts.devices))):
        return {}
    because = (
        f"the chosen GPUs out of {len(facts.devices)}; Level Zero numbers GPUs in the order of their PCI addresses"
    )
    if facts.devices and facts.devices[0].number:
        because = "the processor's integrated graphics has number 0 and is excluded"
    instead = ("ONEAPI_DEVICE_SELECTOR: hides devices from SYCL only; oneCCL still counts them",)
    return {VISIBLE: Value(",".join(map(str, numbers)), because, instead)}


# --- type -----------------------------------------------------------------------------------------------------------


def _choose_xpu_dtype(
    profile: Mapping[str, Any], chosen: Fit, thresholds: Thresholds, unstable: str
) -> dict[str, Value]:
    """Choose float16 if bfloat16 gives wrong results; otherwise the stack's type, or the model's type.

    `unstable` is why vLLM refuses float16 for the model, whatever the stack says; empty if it does not.
    """
    without_bfloat16 = [device for device in chosen.devices if not computes_bfloat16(device, thresholds)]
    if not without_bfloat16 and unstable:
        return {DTYPE: Value("bfloat16", f"vLLM refuses float16 for this model: {unstable}", ("float16: refused",))}
    if not without_bfloat16 and any(item["setting"] == DTYPE for item in profile["settings"]):
        return {}
    if not without_bfloat16:
        because = f"the model's stored type; {chosen.devices[0].name} supports both float16 and bfloat16"
        return {DTYPE: Value("auto", because, ("the other 16-bit type: rounds the weights and is not faster",))}
    because = f"{without_bfloat16[0].name} does not compute bfloat16 correctly in this version"
    instead = ("bfloat16: vLLM refuses it or gives wrong answers", "float32: twice the memory")
    return {DTYPE: Value("float16", because, instead)}


def computes_bfloat16(device: Device, thresholds: Thresholds) -> bool:
    """Return whether a GPU computes bfloat16 correctly: all Data Center GPUs do, and some generations of Arc."""
    if "data center" in device.name.lower() or not device.architecture:
        return True
    return device.architecture in thresholds.words("arc_bfloat16_architectures")


# --- notices --------------------------------------------------------------------------------------------------------


def _find_xpu_notices(
    chosen: Fit, model: ModelFacts, user_flags: UserFlags, thresholds: Thresholds
) -> Iterator[Notice]:
    """Yield notices about settings of the user or the model that are kept but have a cost."""
    without_bfloat16 = [device.name for device in chosen.devices if not computes_bfloat16(device, thresholds)]
    if user_flags.flag(DTYPE) == "bfloat16" and without_bfloat16:
        yield make_notice("XPU-031", without_bfloat16[0], "float16")
    method = user_flags.flag("--quantization") or model.quantization
    if method and method not in thresholds.words("quantization_methods"):
        yield make_notice("XPU-032", method, f"one of {', '.join(thresholds.words('quantization_methods'))}")
    if chosen.pipeline > 1:
        yield make_notice("PLAN-036", f"{chosen.pipeline} stages of {chosen.tensor}", "tensor parallelism alone")
