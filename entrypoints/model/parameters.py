"""config.json → the number of parameters and their bytes: an estimate for weights that are not on disk. Pure.

Counted: embeddings, attention, feed-forward parts, experts, states' projections, a vision tower. Not counted: norms,
biases and routers, a few thousandths together. The estimate is within 3 % for real models, see tests/models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from entrypoints.model.config import Config, Table, as_list, count_listed_layers, optional_table, read_size
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
STATE_INPUTS = "in_proj"
"""Name of the matrices that feed a layer's state."""
_SCALE_BITS, _FP8_SCALE_BITS, _BLOCK_SCALE_BITS = 16, 8, 32
_FLOAT = 2
"""Bytes of a number that is not quantised."""


class Linear(NamedTuple):
    """Equal matrices of a model's layers."""

    names: tuple[str, ...]
    """As vLLM names the matrix, and the parts that it is merged of."""
    layers: int
    inputs: int
    outputs: int
    divided: str = ""
    """Which side ranks divide: inputs, outputs; empty if each rank has all of it."""
    slices: int = 1
    """Parts that it is merged of, each of which an adapter changes on its own."""
    experts: int = 0
    """Routed experts of a layer that have one each; 0 for a matrix of the layer itself."""
    plain: bool = False
    """Whether a quantised model leaves it as it is, at least in some layers."""

    @property
    def numbers(self) -> int:
        """Numbers of all of them."""
        return self.layers * (self.experts or 1) * self.inputs * self.outputs


def list_linears(config: Config, geometry: Geometry) -> tuple[Linear, ...]:
    """Return all matrices that adapters can change: those of the layers, the embedding and the output."""
    hidden, vocabulary = geometry.hidden, geometry.vocabulary
    ends = (Linear((name,), 1, vocabulary, hidden) for name in ("embed_tokens", "lm_head"))
    every = (*_list_layer_linears(config, geometry), *_list_expert_linears(config, geometry), *ends)
    return tuple(linear for linear in every if linear.numbers)


def estimate_weights(config: Config, geometry: Geometry) -> Weights:
    """Estimate the weights; embeddings stay floating-point numbers in a quantised model."""
    numbers, other_bytes, experts = _count_numbers(config, geometry)
    return Weights(0, numbers, int(other_bytes + experts))


def compute_weight_shares(config: Config, geometry: Geometry) -> tuple[float, float]:
    """Return the routed experts' share of the weights' bytes, and the share of the numbers that vLLM can quantise.

    Both are from 0 to 1. The second, of linear layers and experts, is 0 for a model that is quantised already.
    """
    numbers, other_bytes, experts = _count_numbers(config, geometry)
    if config.quantization.method:
        return experts / max(1.0, _FLOAT * numbers + other_bytes + experts), 0.0
    routed = _expert_numbers(config, geometry)
    return routed / max(1, numbers), (_count_dense_numbers(config, geometry) + routed) / max(1, numbers)


def _count_numbers(config: Config, geometry: Geometry) -> tuple[int, float, float]:
    """Return floating-point numbers, quantised bytes without experts, and quantised bytes of experts."""
    quantization = config.quantization
    floating = (
        _count_embeddings(config, geometry) + _count_tower_numbers(config.vision) + _count_tower_numbers(config.audio)
    )
    experts, rest = _expert_numbers(config, geometry), _count_dense_numbers(config, geometry)
    if not quantization.method:
        return floating + rest + experts, 0.0, 0.0
    if quantization.method == "mxfp4":  # gpt-oss quantises experts only
        return floating + rest, 0.0, experts * _BITS["mxfp4"] / 8
    bits = quantization.bits or _BITS.get(quantization.method, 8)
    if quantization.group:
        bits += _scale_bits(quantization.method, quantization.group)
    expert_bits = _BITS["mxfp4"] if config.text.get("expert_dtype") == "fp4" else bits  # DeepSeek-V4
    return floating, rest * bits / 8, experts * expert_bits / 8


def _scale_bits(method: str, group: int) -> float:
    """Return the bits of scales for each number, where `group` numbers of a row share one."""
    if method == "fp8":  # a float32 for each square block (vLLM quantization/fp8.py, weight_scale_inv)
        return _BLOCK_SCALE_BITS / group**2
    return (_FP8_SCALE_BITS if method == "modelopt_fp4" else _SCALE_BITS) / group


def _count_embeddings(config: Config, geometry: Geometry) -> int:
    default = config.outer.get("tie_word_embeddings", config.family in _TIED)
    tied = config.text.get("tie_word_embeddings", default)
    return geometry.vocabulary * geometry.hidden * (1 if tied else 2)


def _count_dense_numbers(config: Config, geometry: Geometry) -> int:
    """Count the parameters of all layers without routed experts."""
    return sum(linear.numbers for linear in _list_layer_linears(config, geometry))


def _list_layer_linears(config: Config, geometry: Geometry) -> Iterator[Linear]:
    """Yield the matrices of all layers without routed experts."""
    state_layers = config.pattern.count("M") if config.pattern else geometry.cacheless
    sparse = _sparse_layers(config, geometry)
    dense = max(0, _feed_forward_layers(config, geometry) - sparse)
    excluded = _list_excluded_modules(config)
    shared_plain = any("share" in name for name in excluded)  # shared_experts, share_expert
    attention = _list_attention_linears(config.text, geometry, geometry.layers - geometry.cacheless)
    yield from (_as_quantised(linear, excluded) for linear in attention)
    yield Linear((STATE_INPUTS,), state_layers, geometry.hidden, _state_width(config.text, geometry), "outputs")
    matrices = _feed_forward(config, geometry, dense, geometry.intermediate or 4 * geometry.hidden)
    yield from (_as_quantised(linear, excluded) for linear in matrices)
    shared = _feed_forward(config, geometry, sparse, _shared_width(config, geometry))
    yield from (linear._replace(plain=shared_plain) for linear in shared)
    yield Linear(("latent_proj",), 2 * sparse, geometry.hidden, geometry.expert_input)


def _list_excluded_modules(config: Config) -> tuple[str, ...]:
    """Return the modules that a quantisation leaves as they are."""
    parts = (config.outer, config.text)
    tables = [table for part in parts if (table := optional_table(part, "quantization_config")) is not None]
    keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
    return tuple(name for table in tables for key in keys for name in as_list(table, key) if isinstance(name, str))


def _as_quantised(linear: Linear, excluded: tuple[str, ...]) -> Linear:
    """Return a matrix with the mark of one that is left as it is in some layers."""
    return linear._replace(plain=any(name.rpartition(".")[2] in linear.names for name in excluded))


def _feed_forward(
    config: Config, geometry: Geometry, layers: int, width: int, experts: int = 0
) -> tuple[Linear, Linear]:
    """Return the two matrices of a feed-forward part; a gate is merged with the first."""
    slices = 1 if config.family in _PLAIN else 2
    hidden = (geometry.expert_input or geometry.hidden) if experts else geometry.hidden
    names = ("experts",) if experts else ()
    up = (*names, "gate_up_proj", "gate_proj", "up_proj")
    return (
        Linear(up, layers, hidden, slices * width, "outputs", slices, experts),
        Linear((*names, "down_proj"), layers, width, hidden, "inputs", 1, experts),
    )


def _list_attention_linears(text: Table, geometry: Geometry, layers: int) -> Iterator[Linear]:
    """Yield the matrices of the layers' attention."""
    hidden, heads, width = geometry.hidden, geometry.heads, geometry.head_size
    if not geometry.latent:
        merged = ("qkv_proj", "q_proj", "k_proj", "v_proj")
        queries = 2 * heads if text.get("attn_output_gate") else heads  # Qwen3.5: a gate for each query
        yield Linear(merged, layers, hidden, (queries + 2 * geometry.kv_heads) * width, "outputs", 3)
        yield Linear(("o_proj",), layers, heads * width, hidden, "inputs")
        return
    rope, plain, value = (
        read_size(text, "qk_rope_head_dim"),
        read_size(text, "qk_nope_head_dim"),
        read_size(text, "v_head_dim"),
    )
    low, latent = read_size(text, "q_lora_rank"), geometry.latent - rope
    if low:
        yield Linear(("fused_qkv_a_proj", "q_a_proj"), layers, hidden, low)
    yield Linear(("q_b_proj", "q_proj"), layers, low or hidden, heads * (plain + rope), "outputs")
    yield Linear(("fused_qkv_a_proj", "kv_a_proj_with_mqa"), layers, hidden, geometry.latent)
    yield Linear(("kv_b_proj",), layers, latent, heads * (plain + value), "outputs")
    yield Linear(("o_proj",), layers, heads * value, hidden, "inputs")


def _state_width(text: Table, geometry: Geometry) -> int:
    """Return the outputs of the matrices that feed one layer's state."""
    net = parse_delta_net(text)
    keys = net.key_heads * net.key_size
    if keys:
        return 2 * keys + 3 * net.value_heads * net.value_size
    mamba = parse_mamba(text)
    inner = mamba.heads * mamba.head_size or mamba.expand * geometry.hidden
    return 3 * inner + 2 * mamba.state * mamba.groups


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
    first = read_size(text, "first_k_dense_replace", "moe_layer_start_index")
    period = read_size(
        text, "interleave_moe_layer_step", "decoder_sparse_step", "expert_layer_period", "moe_layer_freq"
    )
    without_experts = count_listed_layers(text, "mlp_only_layers", range(geometry.layers))
    return max(0, (geometry.layers - first) // (period or 1) - without_experts)


def _expert_numbers(config: Config, geometry: Geometry) -> int:
    """Count the parameters of all routed experts."""
    return sum(linear.numbers for linear in _list_expert_linears(config, geometry))


def _list_expert_linears(config: Config, geometry: Geometry) -> tuple[Linear, ...]:
    layers = _sparse_layers(config, geometry)
    return _feed_forward(config, geometry, layers, geometry.expert_width, geometry.experts) if layers else ()


def _shared_width(config: Config, geometry: Geometry) -> int:
    """Return the width of one layer's experts that serve every token."""
    text, width = config.text, geometry.expert_width
    if config.family.startswith("llama4"):
        return width
    shared = read_size(text, "shared_expert_intermediate_size", "shared_intermediate_size",
                  "moe_shared_expert_intermediate_size")  # fmt: skip
    return shared or width * read_size(text, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")


def _count_tower_numbers(tower: Table) -> int:
    """Estimate the parameters of a tower: attention and feed-forward parts of its layers, and what merges positions."""
    # Qwen2-VL calls the width embed_dim, and its hidden_size is the language model's
    width = read_size(tower, "embed_dim", "hidden_size", "width", "d_model")
    inner = read_size(tower, "intermediate_size", "encoder_ffn_dim") or 4 * width
    matrices = 3 if tower.get("hidden_act") == "silu" else 2  # with a gate: Qwen2.5-VL
    layers = read_size(tower, "depth", "num_hidden_layers", "layers", "encoder_layers")
    return layers * width * (4 * width + matrices * inner) + _count_merger_numbers(tower, width)


def _count_merger_numbers(tower: Table, width: int) -> int:
    """Count the parameters that merge neighbouring positions: Qwen's towers do it once, and for each DeepStack."""
    merged, outputs = width * read_size(tower, "spatial_merge_size") ** 2, read_size(tower, "out_hidden_size")
    return (1 + len(as_list(tower, "deepstack_visual_indexes"))) * merged * (merged + outputs) if outputs else 0
