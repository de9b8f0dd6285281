"""config.json → how many parameters, and what they take, where no weights tell it: an estimate. Pure.

Counted: embeddings, attention, feed-forward parts, experts, states' projections, a vision tower. Not counted: norms,
biases and routers, a few thousandths together. Real models are within three hundredths, see tests/models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.model.geometry import Geometry, text_config
from entrypoints.model.modelconfig import group_size, quantization
from entrypoints.model.read import Weights

_PLAIN = ("gpt2", "gpt_neox", "opt", "bert", "roberta", "xlm-roberta", "falcon", "phi", "bloom", "mpt", "starcoder2",
          "gpt_bigcode", "whisper", "nemotron", "nemotron_h", "nomic_bert", "qwen2_audio_encoder")  # fmt: skip
"""Families whose feed-forward part has two matrices; all others have a gate too."""
_TIED = ("gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2", "gpt2", "bert", "roberta", "xlm-roberta",
         "falcon", "opt", "bloom")  # fmt: skip
"""Families whose output matrix is the embedding where config.json does not say."""
_BITS = {
    "fp8": 8,
    "mxfp4": 4.25,
    "gptq": 4,
    "awq": 4,
    "bitsandbytes": 4,
    "modelopt": 8,
    "modelopt_fp4": 4.5,
    "fbgemm_fp8": 8,
}
_SCALE_BITS = 16
_FLOAT = 2
"""Bytes of a number that is not quantised."""


def estimate(config: Mapping[str, Any], geometry: Geometry) -> Weights:
    """Estimate what the weights take; embeddings stay floating-point numbers in a quantised model."""
    numbers, other, experts = _counted(config, geometry)
    return Weights(0, numbers, int(other + experts))


def expert_share(config: Mapping[str, Any], geometry: Geometry) -> float:
    """Return the share of the weights' bytes that experts take, shared ones left out; 0 without experts."""
    numbers, other, experts = _counted(config, geometry)
    if not quantization(config):
        experts = _expert_numbers(text_config(config), geometry)
        return experts / numbers if numbers else 0.0
    return experts / max(1.0, _FLOAT * numbers + other + experts)


def _counted(config: Mapping[str, Any], geometry: Geometry) -> tuple[int, float, float]:
    """Return floating-point numbers, and the bytes of what is quantised: experts apart."""
    text = text_config(config)
    floating = _embeddings(config, text, geometry) + _vision(config)
    experts, rest, method = _expert_numbers(text, geometry), _rest(text, geometry), quantization(config)
    if not method:
        return floating + rest + experts, 0.0, 0.0
    if method == "mxfp4":  # gpt-oss: the experts alone
        return floating + rest, 0.0, experts * _BITS[method] / 8
    group = group_size(config)
    size = (_bits(config, method) + (_SCALE_BITS / group if group else 0)) / 8
    return floating, rest * size, experts * size


def _whole(table: Mapping[str, Any], *keys: str) -> int:
    """Return the first of several names' whole number, 0 without one."""
    values = (table.get(key) for key in keys)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0), 0)


def _bits(config: Mapping[str, Any], method: str) -> float:
    """Return the bits of one quantised number."""
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    table = found if isinstance(found, dict) else {}
    groups = table.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    inner = _whole(weights, "num_bits") if isinstance(weights, dict) else 0
    return inner or _whole(table, "bits", "w_bit", "num_bits") or _BITS.get(method, 8)


def _embeddings(config: Mapping[str, Any], text: Mapping[str, Any], geometry: Geometry) -> int:
    family = str(text.get("model_type") or config.get("model_type"))
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", family in _TIED))
    return geometry.vocabulary * geometry.hidden * (1 if tied else 2)


def _rest(text: Mapping[str, Any], geometry: Geometry) -> int:
    """Count all layers but their routed experts."""
    attention = (geometry.layers - geometry.cacheless) * _attention(text, geometry)
    pattern = text.get("hybrid_override_pattern")
    keeping = pattern.count("M") if isinstance(pattern, str) else geometry.cacheless
    states = _state_projections(text, geometry) * keeping
    sparse = _sparse_layers(text, geometry)
    dense = max(0, _dense_layers(text, geometry) - sparse)
    feed_forward = _matrices(text) * geometry.hidden * (geometry.intermediate or 4 * geometry.hidden)
    return attention + states + dense * feed_forward + sparse * _shared(text, geometry)


def _matrices(text: Mapping[str, Any]) -> int:
    """Return the matrices of a feed-forward part: a gated one has three."""
    return 2 if str(text.get("model_type")) in _PLAIN else 3


def _attention(text: Mapping[str, Any], geometry: Geometry) -> int:
    hidden, heads = geometry.hidden, geometry.heads
    if not geometry.latent:
        return 2 * hidden * geometry.head_size * (heads + geometry.kv_heads)
    rope, plain, value = (_whole(text, f"{part}_head_dim") for part in ("qk_rope", "qk_nope", "v"))
    low, latent = _whole(text, "q_lora_rank"), geometry.latent - rope
    queries = low * (hidden + heads * (plain + rope)) if low else hidden * heads * (plain + rope)
    return queries + hidden * geometry.latent + latent * heads * (plain + value) + heads * value * hidden


def _state_projections(text: Mapping[str, Any], geometry: Geometry) -> int:
    """Return the numbers of what feeds one layer's state."""
    keys = _whole(text, "linear_num_key_heads") * _whole(text, "linear_key_head_dim")
    values = _whole(text, "linear_num_value_heads") * _whole(text, "linear_value_head_dim")
    if keys:
        return geometry.hidden * (2 * keys + 3 * values)
    heads = _whole(text, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
    inner = heads * _whole(text, "mamba_d_head", "mamba_head_dim")
    inner = inner or _whole(text, "mamba_expand") * geometry.hidden
    state = _whole(text, "mamba_d_state", "ssm_state_size") * (_whole(text, "mamba_n_groups", "n_groups") or 1)
    return geometry.hidden * (3 * inner + 2 * state)


def _dense_layers(text: Mapping[str, Any], geometry: Geometry) -> int:
    """Return the layers that have a feed-forward part: in Nemotron-H those marked so, elsewhere all."""
    pattern = text.get("hybrid_override_pattern")
    return sum(pattern.count(mark) for mark in "-E") if isinstance(pattern, str) else geometry.layers


def _sparse_layers(text: Mapping[str, Any], geometry: Geometry) -> int:
    """Count the layers that have experts."""
    if not geometry.experts:
        return 0
    pattern, only = text.get("hybrid_override_pattern"), text.get("mlp_only_layers")
    if isinstance(pattern, str):
        return pattern.count("E")
    first = _whole(text, "first_k_dense_replace", "moe_layer_start_index")
    every = _whole(text, "interleave_moe_layer_step", "decoder_sparse_step", "expert_layer_period", "moe_layer_freq")
    dense = len(only) if isinstance(only, list) else 0
    return max(0, (geometry.layers - first) // (every or 1) - dense)


def _expert_numbers(text: Mapping[str, Any], geometry: Geometry) -> int:
    """Count all routed experts."""
    each = _matrices(text) * geometry.hidden * geometry.expert_width
    return _sparse_layers(text, geometry) * geometry.experts * each


def _shared(text: Mapping[str, Any], geometry: Geometry) -> int:
    """Return the numbers of one layer's experts that serve every token."""
    width = geometry.expert_width
    shared = _whole(text, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts") * width
    shared = _whole(text, "shared_expert_intermediate_size", "shared_intermediate_size") or shared
    if str(text.get("model_type")).startswith("llama4"):
        shared = width
    return _matrices(text) * geometry.hidden * shared


def _vision(config: Mapping[str, Any]) -> int:
    """Return the numbers of a vision tower, roughly: attention and feed-forward of its layers."""
    outer = config.get("thinker_config")
    found = (outer if isinstance(outer, dict) else config).get("vision_config")
    tower = found if isinstance(found, dict) else {}
    # Qwen2-VL calls the width embed_dim, and its hidden_size is the language model's
    width = _whole(tower, "embed_dim", "hidden_size", "width")
    inner = _whole(tower, "intermediate_size") or 4 * width
    return _whole(tower, "depth", "num_hidden_layers", "layers") * width * (4 * width + 2 * inner)
