"""A model's config.json → what it takes beside text, and how its weights are quantised. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.model.geometry import text_config


def modalities(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a model takes beside text."""
    outer = config.get("thinker_config")
    tables = (config, outer if isinstance(outer, dict) else {})
    found = {"image": "vision_config", "audio": "audio_config"}
    return tuple(kind for kind, key in found.items() if any(isinstance(table.get(key), dict) for table in tables))


def stored_type(config: Mapping[str, Any]) -> str:
    """Return the type that the configuration says its numbers are stored in; empty where it does not."""
    types = (table.get(key) for table in (config, text_config(config)) for key in ("dtype", "torch_dtype"))
    return str(next(filter(None, types), ""))


# --- hub ids --------------------------------------------------------------------------------------------------------


def quantization(config: Mapping[str, Any]) -> str:
    """Return the name of the quantisation method as vLLM takes it; empty for none.

    ModelOpt's checkpoints call themselves modelopt whatever they are; vLLM goes by the algorithm (its modelopt.py).
    """
    text = text_config(config)
    found = config.get("quantization_config") or config.get("compression_config") or text.get("quantization_config")
    if not isinstance(found, dict):
        return ""
    method = str(found.get("quant_method", "unnamed"))
    return "modelopt_fp4" if method == "modelopt" and "NVFP4" in str(found.get("quant_algo")).upper() else method


def packing(config: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the bits of a quantised weight (0 where it is not said), and whether GPTQ's groups are out of order.

    AutoGPTQ writes desc_act, and static_groups where groups were fixed before reordering, which keeps them contiguous.
    """
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    if not isinstance(found, dict):
        return 0, False
    bits = found.get("bits") or found.get("w_bit")
    meta = found.get("meta")
    fixed = found.get("static_groups", meta.get("static_groups", True) if isinstance(meta, dict) else True)
    reordered = found.get("desc_act") is True and fixed is False and found.get("group_size") != -1
    return bits if isinstance(bits, int) and not isinstance(bits, bool) and 0 < bits <= 64 else 0, reordered  # noqa: PLR2004 - no wider number exists


def group_size(config: Mapping[str, Any]) -> int:
    """Return how many numbers of quantised weights share one scale; 0 for a whole row or tensor, or none.

    GPTQ and AWQ write group_size, block-wise fp8 weight_block_size, compressed-tensors one for each of config_groups.
    """
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    if not isinstance(found, dict):
        return 0
    blocks, groups = found.get("weight_block_size"), found.get("config_groups")
    sizes = [found.get("group_size"), *(blocks if isinstance(blocks, list) else ())]
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        sizes += [weights.get("group_size")] if isinstance(weights, dict) else []
    return max((size for size in sizes if isinstance(size, int) and size > 1), default=0)


# --- weights --------------------------------------------------------------------------------------------------------
