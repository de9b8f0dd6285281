"""What the weights become while vLLM loads them: quantised at the user's request, or dequantised by the platform. Pure.

Sources: vLLM 0.32's config/quantization.py (_ONLINE_SHORTHANDS) and model_executor/layers/quantization/online/; each
accelerator's own in its thresholds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.checks.findings import make_notice
from entrypoints.core.records import Facts, Notice, Use
from entrypoints.core.units import GIB
from entrypoints.facts.derived import available_memory
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import QUANTIZATION
from entrypoints.request.vllm_flags import UserFlags

QUANTIZED, DEQUANTIZED, STREAMED = "quantized_at_load", "dequantized_at_load", "quantizes_while_loading"
"""Thresholds: `method bits` or `method bits experts`; `method bits-on-disk bits-in-memory`; whether each layer is
quantised as soon as it is loaded.
"""
_ELEMENT = 2
"""Bytes of a number that is not quantised."""
_FLOAT_BITS = 16
_DEVICE = "--weights-load-device"
"""Of Gaudi's fork: where the weights are before they are quantised."""
_IN_HOST = ((_DEVICE, "cpu"), ("VLLM_OFFLOAD_WEIGHTS_BEFORE_QUANT", "1"))
"""Settings with which all weights are in the host's memory first: of Gaudi's fork, and of Intel's llm-scaler."""


class Method(NamedTuple):
    """How many bits a number takes after loading."""

    bits: float
    before: float = 0
    """Bits on disk, of a method that the platform unpacks."""
    experts: bool = False
    """Whether only experts are quantised."""


def as_loaded(thresholds: Mapping[str, Mapping[str, Any]], model: ModelFacts, user_flags: UserFlags) -> ModelFacts:
    """Return the model with its weights as the devices hold them; the bytes on disk stay."""
    if model.weights is None:
        return model
    if model.quantization:
        method = _read_methods(thresholds, DEQUANTIZED).get(model.quantization)
        return _dequantize_weights(model, method) if method else model
    method = _read_methods(thresholds, QUANTIZED).get(user_flags.flag(QUANTIZATION) or "")
    if method is None or not model.linear_share:
        return model
    streamed = thresholds.get(STREAMED, {"value": True})["value"] or user_flags.flag(_DEVICE) == "cpu"
    return _quantize_weights(model, method, str(user_flags.flag(QUANTIZATION)), streamed=streamed)


def find_loading_notices(
    thresholds: Mapping[str, Mapping[str, Any]], model: ModelFacts, user_flags: UserFlags, loaded: ModelFacts
) -> Iterator[Notice]:
    """Yield what the user should know of sizes that no file states, and of weights that change while loading."""
    if model.filled:
        yield make_notice("PLAN-110", ", ".join(model.filled), "sizes in config.json")
    if model.draft and model.draft.weights is None:
        yield make_notice("PLAN-114", model.draft.name, "a draft model whose size is known")
    method = user_flags.flag(QUANTIZATION)
    floating = model.weights is not None and not model.weights.other
    if method and floating and not model.quantization and method not in _read_methods(thresholds, QUANTIZED):
        yield make_notice("PLAN-111", f"{QUANTIZATION} {method}", "a method whose size is known", method=method)
    if model.quantization and loaded.conversion and loaded.weights and model.weights:
        before, after = (f"{weights.loaded(_ELEMENT) / GIB:.1f} GiB" for weights in (model.weights, loaded.weights))
        yield make_notice("PLAN-112", f"{before} on disk, {after} in memory", before, method=model.quantization)


def find_host_weights(
    facts: Facts, model: ModelFacts, loaded: ModelFacts, settings: Mapping[str, Any], uses: Iterable[Use]
) -> Iterator[Notice]:
    """Yield a notice if the host cannot hold the weights that are quantised in its memory, before they are moved."""
    setting = next((f"{name}={value}" for name, value in _IN_HOST if str(settings.get(name, "")) == value), "")
    if not setting or model.weights is None or loaded.weights == model.weights or model.quantization:
        return
    engines = len({use.engine for use in uses}) or 1
    weight_bytes, available = model.weights.loaded(_ELEMENT) * engines, available_memory(facts)
    if weight_bytes > available:
        shortage = f"{weight_bytes / GIB:.1f} GiB of weights, {available / GIB:.1f} GiB of the host's memory available"
        yield make_notice("PLAN-142", shortage, "memory of the host for all weights, unquantised", setting=setting)


def _read_methods(thresholds: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Method]:
    """Return the methods of a threshold, by name."""
    methods = {}
    for line in thresholds.get(name, {"value": ()})["value"]:
        method, first, *rest = str(line).split()
        if rest and rest[0] != "experts":
            methods[method] = Method(float(rest[0]), before=float(first))
        else:
            methods[method] = Method(float(first), experts=bool(rest))
    return methods


def _quantize_weights(model: ModelFacts, method: Method, name: str, *, streamed: bool) -> ModelFacts:
    """Quantise linear layers and experts, or experts only; embeddings, the output matrix and towers stay."""
    weights = model.weights
    if weights is None:
        return model
    experts = int(weights.elements * model.expert_share)
    part = experts if method.experts else int(weights.elements * max(model.linear_share, model.expert_share))
    other_bytes = weights.other + int(part * method.bits / 8)
    changed = weights._replace(
        elements=weights.elements - part, other=other_bytes, until_loaded=0 if streamed else part
    )
    share = experts * method.bits / 8 / max(1, changed.loaded(_ELEMENT))
    what = "experts" if method.experts else "linear layers"
    conversion = f"{QUANTIZATION} {name} quantises {what} to {method.bits:g} bits"
    return model._replace(weights=changed, expert_share=min(1.0, share), conversion=conversion)


def _dequantize_weights(model: ModelFacts, method: Method) -> ModelFacts:
    """Unpack quantised weights to more bits, or to floating-point numbers of --dtype."""
    weights = model.weights
    if weights is None:
        return model
    numbers = int(weights.other * 8 / method.before)
    floating = method.bits >= _FLOAT_BITS
    added = numbers if floating else 0
    other_bytes = 0 if floating else int(numbers * method.bits / 8)
    changed = weights._replace(elements=weights.elements + added, other=other_bytes)
    growth = method.bits / method.before
    share = model.expert_share * weights.loaded(_ELEMENT) * growth / max(1, changed.loaded(_ELEMENT))
    conversion = f"{model.quantization} weights are unpacked to {method.bits:g} bits while loading"
    return model._replace(weights=changed, expert_share=min(1.0, share), conversion=conversion)
