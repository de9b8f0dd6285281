"""vLLM on Google TPU: memory by generation, parallelism, padded shapes, chips. Pure.

Sources: tpu-inference's platforms/tpu_platform.py, worker/tpu_worker.py, runner/tpu_runner.py and runner/utils.py
(0.21, and 0.27 to 0.32).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, MODEL, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Notice, Value
from entrypoints.decide.decision_input import Case, element_bytes
from entrypoints.decide.parallelism.fit import Fit, Rules, fit_model
from entrypoints.decide.parallelism.hosts import make_reach_fields
from entrypoints.decide.parallelism.visible import restricted_by_number
from entrypoints.decide.records import Decision, Thresholds
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import BATCHED
from entrypoints.request.vllm_flags import UserFlags, parse_count

CACHE = "VLLM_XLA_CACHE_PATH"
VISIBLE = "TPU_VISIBLE_CHIPS"
GAP = "VLLM_TPU_BUCKET_PADDING_GAP"
LEAST = "MIN_TOKEN_BUCKET"
ATTENTION = '{"sharding": {"sharding_strategy": {"enable_dp_attention": true}}}'

_UNPADDED_HEAD = 64
"""The only head size that tpu-inference does not pad."""
_SEQUENCES = 256
"""vLLM's default --max-num-seqs for an API server on hardware with unknown memory."""


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set.

    Raises HOST for a chip generation of unknown memory, MODEL for a quantisation that the platform refuses, and the
    errors of `fit_model`.
    """
    case = Case(
        profile,
        restricted_by_number(facts, user_flags, VISIBLE, get_chip_number),
        pad_head_size(model, profile),
        user_flags,
    )
    _refuse_quantisation(case)
    dtype = Value("bfloat16", "the chips' matrix units compute in bfloat16", ("float16: converted, without any gain",))
    fit_result = fit_model(
        case.facts, case.model, user_flags, make_tpu_rules(case, str(user_flags.flag("--dtype") or dtype.value))
    )
    values = {
        "--dtype": dtype,
        **fit_result.values,
        **_choose_tpu_chips(case, fit_result),
        **_choose_latent_settings(case),
    }
    return Decision(values, (*_compiled_shapes(case, fit_result), *fit_result.findings), uses=fit_result.uses)


def get_chip_number(device: Device) -> int:
    """Return the number of a device's chip in TPU_VISIBLE_CHIPS; a device can be a part of a chip."""
    return device.number if device.card is None else device.card


def pad_head_size(model: ModelFacts, profile: Mapping[str, Any]) -> ModelFacts:
    """Return the model with the head size that the KV cache stores, which is padded."""
    geometry = model.geometry
    if geometry is None or geometry.latent or geometry.head_size == _UNPADDED_HEAD:
        return model
    multiple = Thresholds(profile["thresholds"]).whole("padded_head")
    head_size = -(-geometry.head_size // multiple) * multiple
    return model._replace(geometry=geometry._replace(head_size=head_size))


def make_tpu_rules(case: Case, dtype: str) -> Rules:
    """Return the rules for the chips; an idle chip's memory is known only from its generation. Raises HOST.

    A rank is a JAX device: a chip, or one of a chip's two cores (v7x), which no two processes can share: libtpu selects
    chips (TPU_VISIBLE_CHIPS), and tpu-inference's engines of v7x have two ranks or more. All chips of a host's slice
    serve one model, as in tpu-inference's benchmarks. Ranks must divide the heads, or be a multiple of the KV heads
    (tpu-inference 0.27's utils.py get_padded_num_heads and layers/vllm/custom_ops/linear.py). Its benchmarks of
    mixture-of-experts models on 8 ranks spread whole experts (DeepSeek-R1, Qwen3.5-397B, Qwen3-Coder-480B).
    """
    numbers, name = case.thresholds, f"hbm_gib_{case.architecture}"
    if case.facts.devices and name not in numbers.table:
        generations = ", ".join(
            key.removeprefix("hbm_gib_") for key in sorted(numbers.table) if key.startswith("hbm_gib_")
        )
        generation = case.architecture or "unknown"
        hint = "set TPU_ACCELERATOR_TYPE, such as v6e-8, or make /sys readable in the container"
        raise EntrypointError(HOST, f"TPU generation {generation}: expected one of {generations}", hint)
    size = element_bytes(dtype)
    return Rules(
        **make_reach_fields(numbers),
        usable=numbers.number("usable_share"),
        reserved=numbers.bytes("reserved_gib"),
        activations=numbers.bytes("activations_gib"),
        element=size,
        kv_element=1 if (case.user_flags.flag("--kv-cache-dtype") or "").startswith("fp8") else size,
        block=numbers.whole("block_tokens"),
        expert="tp",
        memory=numbers.bytes(name) if case.facts.devices else None,
        executors=(),  # the platform sets its own: one process drives all chips of a host
        whole=True,
        own_classes=True,
        chip=max(Counter(get_chip_number(device) for device in case.facts.devices).values(), default=1),
    )


def _refuse_quantisation(case: Case) -> None:
    methods = case.thresholds.words("quantization_methods")
    method = case.user_flags.flag("--quantization") or case.model.quantization
    if method and method not in methods:
        message = f"{case.model.name}: the TPU platform does not support quantisation {method}"
        raise EntrypointError(MODEL, message, f"use the unquantised model, or one in {', '.join(methods)}")


def _choose_latent_settings(case: Case) -> dict[str, Value]:
    """Return the settings that the platform requires for models with latent attention (DeepSeek)."""
    if case.model.geometry is None or not case.model.geometry.latent:
        return {}
    because = "the platform supports latent attention only in its new model design, with data-parallel attention"
    instead = ("unset: the platform refuses to start",)
    return {"NEW_MODEL_DESIGN": Value("1", because, instead), "--additional-config": Value(ATTENTION, because, instead)}


# --- chips ----------------------------------------------------------------------------------------------------------


def _choose_tpu_chips(case: Case, chosen: Fit) -> dict[str, Value]:
    """Select chips if not all are needed, by the three variables that libtpu reads together."""
    all_chips = {get_chip_number(device) for device in case.facts.devices}
    chips = sorted({get_chip_number(device) for device in chosen.devices})
    if not chips or set(chips) == all_chips:
        return {}
    because = f"{format_id_list(tuple(chips))} of {len(all_chips)} chips; the others stay free for another server"
    shape = "one process drives the chips; tpu-inference sets the same for a part of a host"
    return {
        VISIBLE: Value(",".join(map(str, chips)), because),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": Value(f"1,{len(chips)},1", shape),
        "TPU_PROCESS_BOUNDS": Value("1,1,1", shape),
    }


# --- compiling ------------------------------------------------------------------------------------------------------


def token_paddings(least: int, most: int, gap: int) -> tuple[int, ...]:
    """Return the token counts that graphs are compiled for, computed as in runner/utils.py.

    The counts double until one covers `most`. With a gap above zero they double up to the gap, then grow by the gap.
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


def _compiled_shapes(case: Case, chosen: Fit) -> Iterator[Notice]:
    """Yield a notice with the number of shapes that are compiled before the server is ready."""
    if case.user_flags.variable("SKIP_JAX_PRECOMPILE") in ("1", "true", "True"):
        return
    user_flags, numbers = case.user_flags, case.thresholds
    most = user_flags.number(BATCHED) or numbers.whole("batched_tokens")
    least = _read_count_variable(user_flags, LEAST) or numbers.whole("least_token_bucket")
    tokens = token_paddings(least, most, _read_count_variable(user_flags, GAP))
    requests = token_paddings(numbers.whole("least_request_bucket"), chosen.sequences or _SEQUENCES, 0)
    shape_counts = f"{len(tokens)} token counts ({', '.join(map(str, tokens))}) and {len(requests)} request counts"
    yield make_notice("TPU-041", shape_counts, "fewer, if the server starts often")


def _read_count_variable(user_flags: UserFlags, name: str) -> int:
    text = user_flags.variable(name)
    return parse_count(text, name, 0) if text else 0
