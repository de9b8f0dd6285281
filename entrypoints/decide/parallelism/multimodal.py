"""The memory that images and recordings take on a device: the tower's activations and the encoder's cache. Pure.

vLLM 0.32 sizes both when it profiles: the encoder's cache holds at least --max-num-batched-tokens embeddings, and at
least the largest item; the tower computes as many of the largest items at once (multimodal/encoder_budget.py,
v1/core/encoder_cache_manager.py, compute_mm_encoder_budget; v1/worker/gpu_model_runner.py, profile_run).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.core.records import Value
from entrypoints.model.multimodal_encoders import Tower
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import TENSOR
from entrypoints.request.vllm_flags import UserFlags

TEXT_ONLY, LIMITS, PROCESSOR = "--language-model-only", "--limit-mm-per-prompt", "--mm-processor-kwargs"
ABSENT_PACKAGES = "DRYDOCK_ABSENT_PACKAGES"
"""Variable with packages that the image lacks, for which drydock's plugin stands in (drydock_plugin/deferring.py)."""
TOWER_MODE = "--mm-encoder-tp-mode"

_K25, _QWEN3 = "KimiK25ForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"
PUBLISHED_WHOLE = {
    **dict.fromkeys((("cuda", _K25), ("rocm", _K25)), "vLLM recipes: moonshotai/Kimi-K2.5"),
    ("ascend", _K25): "vllm-ascend: tutorials/models/Kimi-K2.5.md",
    ("cuda", _QWEN3): "Qwen: README of Qwen3-VL",
    **dict.fromkeys(
        (("rocm", _QWEN3), ("rocm", "InternVLChatModel"), ("rocm", "Step3VLForConditionalGeneration")),
        "AMD: Accelerating Multimodal Inference in vLLM",
    ),
}
"""Accelerator and architecture → who publishes commands with --mm-encoder-tp-mode data for them."""
_PUBLISHED_RANKS = 4
"""Ranks of the smallest published command: with fewer, the ranks exchange little for a tower."""


class Inputs(NamedTuple):
    """What a server accepts other than text."""

    tokens: int
    """Tokens of one step."""
    refused: tuple[str, ...] = ()
    """Kinds of input that the user excludes."""
    pixels: int = 0
    """Pixels of the largest image, if the user limits it; 0 for the model's own limit."""
    text_only: bool = False


class Encoder(NamedTuple):
    """What the towers of a model take, in bytes; 0 without towers."""

    cache: int = 0
    activations: int = 0
    kind: str = ""
    """The kind of the largest item."""
    items: int = 0
    """The items themselves."""


def read_inputs(user_flags: UserFlags, tokens: int) -> Inputs:
    """Return what the user's flags accept, for steps of so many tokens."""
    limits, processor = _parse_flag_table(user_flags.flag(LIMITS)), _parse_flag_table(user_flags.flag(PROCESSOR))
    refused = tuple(kind for kind, most in limits.items() if _read_item_limit(most) == 0)
    pixels = processor.get("max_pixels")
    flag = user_flags.flags.get(TEXT_ONLY)
    return Inputs(
        tokens,
        refused,
        pixels if isinstance(pixels, int) and pixels > 0 else 0,
        flag is not None and flag.value is not False,
    )


def has_whole_towers(user_flags: UserFlags) -> bool:
    """Return whether ranks do not share a tower: --mm-encoder-tp-mode data, or no tower at all (vLLM 0.32)."""
    return user_flags.flag(TOWER_MODE) == "data" or read_inputs(user_flags, 0).text_only


def choose_whole_towers(
    accelerator: str, model: ModelFacts, user_flags: UserFlags, decided: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the mode in which each rank holds the whole tower, where a vendor publishes it and no mode is set.

    The split was decided as if the ranks shared a tower, which is the narrower rule.
    """
    source, names = PUBLISHED_WHOLE.get((accelerator, model.architecture)), user_flags.vllm.names("flags")
    if (
        not source
        or TOWER_MODE in user_flags.flags
        or has_whole_towers(user_flags)
        or (names and TOWER_MODE not in names)
    ):
        return {}
    size = user_flags.flag(TENSOR) or str(decided[TENSOR].value if TENSOR in decided else 1)
    if not size.isdecimal() or int(size) < _PUBLISHED_RANKS:
        return {}
    because = "the ranks exchange nothing for images, each computes its share of them with the whole tower"
    return {TOWER_MODE: Value("data", f"{because} ({source})", ("weights: each rank holds a part of the tower",))}


def compute_encoder_memory(model: ModelFacts, inputs: Inputs | None, element: int, most: int = 0) -> Encoder:
    """Return what the tower with the largest item takes; nothing if the user serves text only.

    `most` are the embeddings that a tower computes at a time at most; 0 if it takes the largest item as a whole.
    """
    if inputs is None or inputs.text_only or model.geometry is None:
        return Encoder()
    towers = [tower for tower in model.towers if tower.kind not in inputs.refused]
    if not towers:
        return Encoder()
    limited = [_limit_pixels(tower, inputs) for tower in towers]
    largest = max((tower.of_tokens(most) if most else tower for tower in limited), key=lambda tower: tower.tokens)
    budget = max(inputs.tokens, largest.tokens)
    items = max(1, budget // largest.tokens)
    cache = budget * model.geometry.hidden * element
    return Encoder(cache, largest.activations(items, element), largest.kind, largest.item_bytes(items, element))


def _limit_pixels(tower: Tower, inputs: Inputs) -> Tower:
    return tower.limited(inputs.pixels) if inputs.pixels else tower


def _read_item_limit(value: Any) -> int | None:
    """Return how many items of a kind a prompt may have: a number, or an object with `count`."""
    count = value.get("count") if isinstance(value, dict) else value
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def _parse_flag_table(text: str | None) -> dict[str, Any]:
    """Return a flag's JSON object, or `image=0,video=5` of earlier versions; empty for what only vLLM understands."""
    if text is None:
        return {}
    try:
        table = json.loads(text)
    except ValueError:
        pairs = (part.partition("=") for part in text.split(","))
        return {name.strip(): int(number) for name, _, number in pairs if re.fullmatch("[0-9]{1,9}", number.strip())}
    return table if isinstance(table, dict) else {}
