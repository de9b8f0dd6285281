"""config.json → the number of parameters and their bytes: an estimate for weights that are not on disk. Pure.

Counted: embeddings, attention, feed-forward parts, experts, states' projections, a vision tower. Not counted: norms,
biases and routers, a few thousandths together. The estimate is within 3 % for real models, see tests/models.
"""

from __future__ import annotations

from entrypoints.model.config import Config, Table, as_list, size
from entrypoints.model.geometry import Geometry
from entrypoints.model.hybrid import parse_delta_net, parse_mamba
from entrypoints.model.weights import Weights

_PLAIN = ("gpt2", "gpt_neox", "opt", "bert", "roberta", "xlm-roberta", "falcon", "phi", "bloom", "mpt", "starcoder2",
          "gpt_bigcode", "whisper", "nemotron", "nemotron_h", "nomic_bert", "qwen2_audio_encoder")  # fmt: skip
"""Families whose feed-forward part has two matrices; all others also have a gate."""
_TIED = ("gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2", "gpt2", "bert", "roberta", "xlm-roberta",
         "falcon", "opt", "bloom")  # fmt: skip
"""Families whose output matrix is the embedding if config.json does not say."""
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
"""Bits of a number, by method, if config.json does not name them; 8 for all other methods."""
_SCALE_BITS = 16
_FLOAT = 2
"""Bytes of a number that is not quantised."""


def estimate(config: Config, geometry: Geometry) -> Weights:
    """Estimate the weights; embeddings stay floating-point numbers in a quantised model."""
    numbers, other, experts = _count(config, geometry)
    return Weights(0, numbers, int(other + experts))


def shares(config: Config, geometry: Geometry) -> tuple[float, float]:
    """Return the routed experts' share of the weights' bytes, and the share of the numbers that vLLM can quantise.

    Both are from 0 to 1. The second, of linear layers and experts, is 0 for a model that is quantised already.
    """
    numbers, other, experts = _count(config, geometry)
    if config.quantization.method:
        return experts / max(1.0, _FLOAT * numbers + other + experts), 0.0
    routed = _expert_numbers(config, geometry)
    return routed / max(1, numbers), (_rest(config, geometry) + routed) / max(1, numbers)


def _count(config: Config, geometry: Geometry) -> tuple[int, float, float]:
    """Return floating-point numbers, quantised bytes without experts, and quantised bytes of experts."""
    quantization = config.quantization
    floating = _embeddings(config, geometry) + _vision(config.vision)
    experts, rest = _expert_numbers(config, geometry), _rest(config, geometry)
    if not quantization.method:
        return floating + rest + experts, 0.0, 0.0
    if quantization.method == "mxfp4":  # gpt-oss quantises experts only
        return floating + rest, 0.0, experts * _BITS["mxfp4"] / 8
    bits = quantization.bits or _BITS.get(quantization.method, 8)
    if quantization.group:
        bits += _SCALE_BITS / quantization.group
    expert_bits = _BITS["mxfp4"] if config.text.get("expert_dtype") == "fp4" else bits  # DeepSeek-V4
    return floating, rest * bits / 8, experts * expert_bits / 8


def _embeddings(config: Config, geometry: Geometry) -> int:
    default = config.outer.get("tie_word_embeddings", config.family in _TIED)
    tied = config.text.get("tie_word_embeddings", default)
    return geometry.vocabulary * geometry.hidden * (1 if tied else 2)


def _rest(config: Config, geometry: Geometry) -> int:
    """Count the parameters of all layers without routed experts."""
    attention = (geometry.layers - geometry.cacheless) * _attention(config.text, geometry)
    state_layers = config.pattern.count("M") if config.pattern else geometry.cacheless
    states = _state_projections(config.text, geometry) * state_layers
    sparse = _sparse_layers(config, geometry)
    dense = max(0, _feed_forward_layers(config, geometry) - sparse)
    feed_forward = _matrices(config) * geometry.hidden * (geometry.intermediate or 4 * geometry.hidden)
    return attention + states + dense * feed_forward + sparse * _shared(config, geometry)


def _matrices(config: Config) -> int:
    """Return the matrices of a feed-forward part: a gated one has three."""
    return 2 if config.family in _PLAIN else 3


def _attention(text: Table, geometry: Geometry) -> int:
    """Count the parameters of one layer's attention."""
    hidden, heads = geometry.hidden, geometry.heads
    if not geometry.latent:
        return 2 * hidden * geometry.head_size * (heads + geometry.kv_heads)
    rope, plain, value = size(text, "qk_rope_head_dim"), size(text, "qk_nope_head_dim"), size(text, "v_head_dim")
    low, latent = size(text, "q_lora_rank"), geometry.latent - rope
    queries = low * (hidden + heads * (plain + rope)) if low else hidden * heads * (plain + rope)
    return queries + hidden * geometry.latent + latent * heads * (plain + value) + heads * value * hidden


def _state_projections(text: Table, geometry: Geometry) -> int:
    """Count the parameters that feed one layer's state."""
    net = parse_delta_net(text)
    keys = net.key_heads * net.key_size
    if keys:
        return geometry.hidden * (2 * keys + 3 * net.value_heads * net.value_size)
    mamba = parse_mamba(text)
    inner = mamba.heads * mamba.head_size or mamba.expand * geometry.hidden
    return geometry.hidden * (3 * inner + 2 * mamba.state * mamba.groups)


def _feed_forward_layers(config: Config, geometry: Geometry) -> int:
    """Count the layers with a feed-forward part: the marked ones in Nemotron-H, all in other families."""
    if config.pattern:
        return config.pattern.count("-") + config.pattern.count("E")
    return geometry.layers


def _sparse_layers(config: Config, geometry: Geometry) -> int:
    """Count the layers with experts."""
    if not geometry.experts:
        return 0
    if config.pattern:
        return config.pattern.count("E")
    text = config.text
    first = size(text, "first_k_dense_replace", "moe_layer_start_index")
    period = size(text, "interleave_moe_layer_step", "decoder_sparse_step", "expert_layer_period", "moe_layer_freq")
    return max(0, (geometry.layers - first) // (period or 1) - len(as_list(text, "mlp_only_layers")))


def _expert_numbers(config: Config, geometry: Geometry) -> int:
    """Count the parameters of all routed experts."""
    one = _matrices(config) * (_narrower(config.text) or geometry.hidden) * geometry.expert_width
    return _sparse_layers(config, geometry) * geometry.experts * one


def _narrower(text: Table) -> int:
    """Return the width that a layer's input is projected to for its experts; 0 if they take it as it is."""
    return size(text, "moe_latent_size", "routed_expert_hidden_size")


def _shared(config: Config, geometry: Geometry) -> int:
    """Count the parameters of one layer's experts that serve every token, and of the routed experts' projections."""
    text, width = config.text, geometry.expert_width
    if config.family.startswith("llama4"):
        shared = width
    else:
        shared = size(text, "shared_expert_intermediate_size", "shared_intermediate_size",
                      "moe_shared_expert_intermediate_size")  # fmt: skip
        shared = shared or width * size(text, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return geometry.hidden * (_matrices(config) * shared + 2 * _narrower(text))


def _vision(tower: Table) -> int:
    """Estimate the parameters of a vision tower: attention and feed-forward parts of its layers."""
    # Qwen2-VL calls the width embed_dim, and its hidden_size is the language model's
    width = size(tower, "embed_dim", "hidden_size", "width")
    inner = size(tower, "intermediate_size") or 4 * width
    return size(tower, "depth", "num_hidden_layers", "layers") * width * (4 * width + 2 * inner)
