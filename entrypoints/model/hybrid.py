"""Layers that keep a state of fixed size beside, or instead of, a KV cache: Mamba, gated delta nets. Pure.

The state's size follows from keys of config.json, as vLLM computes it in model_executor/layers/mamba/mamba_utils.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

STATE_BYTES = 4
"""Of one number of a state: vLLM keeps float32 where the model asks for it, and never more."""


class States(NamedTuple):
    """What a model's layers keep, by their kind."""

    attention_layers: int
    state_layers: int
    numbers: int
    """Of one layer's state, for one sequence."""


def parse_states(text: Mapping[str, Any]) -> States | None:
    """Return how many layers attend and how many keep a state; None where the keys do not tell all of it."""
    size = next((number for read in _SIZES if (number := read(text))), 0)
    attention = _attention_layers(text)
    layers = _whole(text, "num_hidden_layers")
    if not (size and layers and attention is not None and 0 <= attention <= layers):
        return None
    both = "falcon_h1" in str(text.get("model_type"))  # every layer attends and keeps a state
    return States(layers if both else attention, layers if both else _state_layers(text, layers - attention), size)


def _whole(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _attention_layers(text: Mapping[str, Any]) -> int | None:
    """Count the layers that attend, however the family writes it."""
    kinds, pattern = text.get("layer_types") or text.get("layers_block_type"), text.get("hybrid_override_pattern")
    if isinstance(kinds, list):
        return sum(str(kind) in ("full_attention", "attention", "hybrid") for kind in kinds)
    if isinstance(pattern, str):  # Nemotron-H: M mamba, * attention, - feed-forward
        return pattern.count("*")
    layers, period = _whole(text, "num_hidden_layers"), _whole(text, "attn_layer_period")
    if period:  # Jamba
        offset = text.get("attn_layer_offset")
        return len(range(offset if isinstance(offset, int) and offset >= 0 else 0, layers, period))
    indices = text.get("attn_layer_indices")  # Bamba
    if isinstance(indices, list):
        return len(indices)
    every = _whole(text, "full_attention_interval")  # Qwen3-Next
    return layers // every if every else 0 if "falcon_h1" in str(text.get("model_type")) else None


def _state_layers(text: Mapping[str, Any], rest: int) -> int:
    pattern = text.get("hybrid_override_pattern")
    return pattern.count("M") if isinstance(pattern, str) else rest


def _gated_delta(text: Mapping[str, Any]) -> int:
    """Return the numbers of a gated delta net's layer: a matrix for each value head, and the convolution's window."""
    heads, values = _whole(text, "linear_num_key_heads"), _whole(text, "linear_num_value_heads")
    key, value = _whole(text, "linear_key_head_dim"), _whole(text, "linear_value_head_dim")
    window = max(0, _whole(text, "linear_conv_kernel_dim") - 1)
    return values * key * value + window * (2 * heads * key + values * value) if heads and values and key else 0


def _mamba2(text: Mapping[str, Any]) -> int:
    """Return the numbers of a Mamba 2 layer."""
    heads = _whole(text, "mamba_n_heads") or _whole(text, "mamba_num_heads") or _whole(text, "n_mamba_heads")
    head = _whole(text, "mamba_d_head") or _whole(text, "mamba_head_dim")
    state = _whole(text, "mamba_d_state") or _whole(text, "ssm_state_size")
    groups = _whole(text, "mamba_n_groups") or _whole(text, "n_groups") or 1
    window = max(0, (_whole(text, "mamba_d_conv") or _whole(text, "conv_kernel")) - 1)
    return heads * head * state + window * (heads * head + 2 * groups * state) if heads and head and state else 0


def _mamba1(text: Mapping[str, Any]) -> int:
    """Return the numbers of a Mamba layer."""
    inner = _whole(text, "mamba_expand") * _whole(text, "hidden_size")
    return inner * (_whole(text, "mamba_d_state") + max(0, _whole(text, "mamba_d_conv") - 1))


_SIZES: tuple[Callable[[Mapping[str, Any]], int], ...] = (_gated_delta, _mamba2, _mamba1)
