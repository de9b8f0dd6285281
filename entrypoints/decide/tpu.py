"""vLLM on Google TPU: memory by generation, parallelism, compile cache, padded shapes, chips. Pure.

What tpu-inference makes of these settings was read in its platforms/tpu_platform.py, worker/tpu_worker.py,
runner/tpu_runner.py and runner/utils.py (0.21, and 0.27 to 0.32).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import notice
from entrypoints.core.errors import HOST, MODEL, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Notice
from entrypoints.decide.case import Case, element_bytes
from entrypoints.decide.records import Decision, Thresholds, Value
from entrypoints.decide.spread.fit import Fit, Rules, fit
from entrypoints.decide.spread.visible import shown
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags, parse_count

CACHE = "VLLM_XLA_CACHE_PATH"
VISIBLE = "TPU_VISIBLE_CHIPS"
GAP = "VLLM_TPU_BUCKET_PADDING_GAP"
LEAST = "MIN_TOKEN_BUCKET"
ATTENTION = '{"sharding": {"sharding_strategy": {"enable_dp_attention": true}}}'

_UNPADDED_HEAD = 64
"""The one head size that tpu-inference has kernels for without padding."""
_SEQUENCES = 256
"""vLLM's own --max-num-seqs for an API server on hardware whose memory it does not know."""


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Decide all that the user did not.

    Raises HOST for chips of a generation whose memory is not known, MODEL for a quantisation that the platform refuses,
    and what `fit` raises.
    """
    case = Case(profile, shown(facts, given, VISIBLE, chip), padded(model, profile), given)
    _refuse_quantisation(case)
    dtype = Value("bfloat16", "what the chips' matrix units compute in", ("float16: converted, at no gain",))
    chosen = fit(case.facts, case.model, given, rules(case, str(given.flag("--dtype") or dtype.value)))
    values = {"--dtype": dtype, **chosen.values, **_chips(case, chosen), **_latent(case)}
    return Decision(values, (*_compiling(case, chosen), *chosen.findings))


def chip(device: Device) -> int:
    """Return the chip that a device is, or is part of, as TPU_VISIBLE_CHIPS counts them."""
    return device.number if device.card is None else device.card


def padded(model: ModelFacts, profile: Mapping[str, Any]) -> ModelFacts:
    """Return the model with heads as wide as the cache really keeps them."""
    geometry = model.geometry
    if geometry is None or geometry.latent or geometry.head_size == _UNPADDED_HEAD:
        return model
    whole = Thresholds(profile["thresholds"]).whole("padded_head")
    return model._replace(geometry=geometry._replace(head_size=-(-geometry.head_size // whole) * whole))


def rules(case: Case, dtype: str) -> Rules:
    """Return what the chips allow; their generation tells their memory where nothing runs on them yet. Raises HOST."""
    numbers, name = case.thresholds, f"hbm_gib_{case.architecture}"
    if case.facts.devices and name not in numbers.table:
        known = ", ".join(key.removeprefix("hbm_gib_") for key in sorted(numbers.table) if key.startswith("hbm_gib_"))
        found = case.architecture or "unknown"
        hint = "set TPU_ACCELERATOR_TYPE, such as v6e-8, or make /sys readable to the container"
        raise EntrypointError(HOST, f"TPU generation {found}: expected one of {known}", hint)
    size = element_bytes(dtype)
    return Rules(
        usable=numbers.number("usable_share"),
        reserved=numbers.bytes("reserved_gib"),
        activations=numbers.bytes("activations_gib"),
        element=size,
        kv_element=1 if (case.given.flag("--kv-cache-dtype") or "").startswith("fp8") else size,
        block=numbers.whole("block_tokens"),
        expert="needed",
        memory=numbers.bytes(name) if case.facts.devices else None,
        executors=(),  # the platform sets its own: one process drives all chips of a host
    )


def _refuse_quantisation(case: Case) -> None:
    methods = case.thresholds.words("quantization_methods")
    method = case.given.flag("--quantization") or case.model.quantization
    if method and method not in methods:
        message = f"{case.model.name}: quantisation {method}, which the TPU platform refuses"
        raise EntrypointError(MODEL, message, f"take the model unquantised, or in one of {', '.join(methods)}")


def _latent(case: Case) -> dict[str, Value]:
    """Return what models with latent attention (DeepSeek) need, without which the platform refuses to start."""
    if case.model.geometry is None or not case.model.geometry.latent:
        return {}
    because = "latent attention runs only in this design, its attention data-parallel over the chips"
    instead = ("without: the platform refuses to start",)
    return {"NEW_MODEL_DESIGN": Value("1", because, instead), "--additional-config": Value(ATTENTION, because, instead)}


# --- chips ----------------------------------------------------------------------------------------------------------


def _chips(case: Case, chosen: Fit) -> dict[str, Value]:
    """Choose chips where not all are needed: the three variables that libtpu reads together."""
    everything = {chip(device) for device in case.facts.devices}
    chips = sorted({chip(device) for device in chosen.devices})
    if not chips or set(chips) == everything:
        return {}
    because = f"{format_id_list(tuple(chips))} of {len(everything)} chips: the others stay free for another server"
    shape = "one process drives them, as tpu-inference itself sets for a part of a host"
    return {
        VISIBLE: Value(",".join(map(str, chips)), because),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": Value(f"1,{len(chips)},1", shape),
        "TPU_PROCESS_BOUNDS": Value("1,1,1", shape),
    }


# --- compiling ------------------------------------------------------------------------------------------------------


def token_paddings(least: int, most: int, gap: int) -> tuple[int, ...]:
    """Return the numbers of tokens that graphs are compiled for, as runner/utils.py does.

    They double until they cover `most`; with a gap above zero they double up to the gap, and then grow by it.
    """
    sizes, size = [], least
    if gap <= 0:
        while size < most:
            sizes.append(size)
            size *= 2
        return (*sizes, size)
    while size <= gap:
        sizes.append(size)
        size *= 2
    size //= 2
    while size < most:
        size += gap
        sizes.append(size)
    return tuple(sizes)


def _compiling(case: Case, chosen: Fit) -> Iterator[Notice]:
    """Say how many shapes are compiled before the server is ready, and what changes that."""
    if case.given.variable("SKIP_JAX_PRECOMPILE") in ("1", "true", "True"):
        return
    given, numbers = case.given, case.thresholds
    most = given.number("--max-num-batched-tokens") or numbers.whole("batched_tokens")
    least = _count(given, LEAST) or numbers.whole("least_token_bucket")
    tokens = token_paddings(least, most, _count(given, GAP))
    requests = token_paddings(numbers.whole("least_request_bucket"), chosen.sequences or _SEQUENCES, 0)
    found = f"{len(tokens)} numbers of tokens ({', '.join(map(str, tokens))}), {len(requests)} of requests"
    yield notice("TPU-041", found, "fewer, where starts are frequent")


def _count(given: UserFlags, name: str) -> int:
    text = given.variable(name)
    return parse_count(text, name, 0) if text else 0
