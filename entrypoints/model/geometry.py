"""A model's config.json → layers, heads and the size of its KV cache. Pure.

An error names the key that cannot be understood; no value is guessed.
"""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.model.config import Config, Table, optional_table, required_size, size
from entrypoints.model.hybrid import STATE_BYTES, parse_states

_LAYERS = ("decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("decoder_attention_heads", "num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "n_kv_heads", "multi_query_group_num",
             "num_attention_groups")  # fmt: skip
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
            "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len")  # fmt: skip
"""Names that vLLM 0.32 looks for, from its model_arch_config_convertor.py."""

_INTERMEDIATE = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "hidden_dim")
_VOCABULARY = ("vocab_size", "padded_vocab_size")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

_RECURRENT = ("mamba_d_state", "ssm_state_size", "state_size", "linear_num_key_heads", "hybrid_override_pattern",
              "attn_layer_period", "attn_type_list", "rwkv_version", "compress_ratios")  # fmt: skip
"""Keys of models whose layers keep a state of their own with, or instead of, a KV cache."""

_LARGEST_FACTOR = 1e6
"""By which a context is stretched; published factors are below 100."""
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6}
"""One layer in so many attends to all tokens, in families that leave this to transformers' defaults."""

_SPARSE = ("deepseek_v32", "glm_moe_dsa")
"""Families whose indexer transformers 5 configures if config.json names none (GLM-5)."""

_SCALED_ALREADY = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope")
"""Kinds of rotary scaling whose factor vLLM 0.32 does not apply to the length a second time."""

_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
"""Kinds of layers that keep a KV cache and nothing else."""


class Geometry(NamedTuple):
    """The sizes that decide how a model splits and how large its KV cache is."""

    layers: int
    sliding_layers: int
    """Layers that attend to the last `window` tokens only."""
    window: int
    heads: int
    kv_heads: int
    head_size: int
    latent: int
    """Numbers per token and layer of multi-head latent attention, which ranks do not split; 0 without it."""
    max_length: int | None
    """Tokens of the longest sequence; None if the configuration does not name it."""
    stated_length: int = 0
    """`model_max_length`, up to which vLLM accepts a longer --max-model-len; 0 if the configuration lacks it."""
    hidden: int = 0
    """Width of a layer's input. This and all fields below are 0 if the configuration does not name them."""
    vocabulary: int = 0
    intermediate: int = 0
    """Width of a dense layer's feed-forward part."""
    experts: int = 0
    expert_width: int = 0
    """Width of one expert's feed-forward part."""
    cacheless: int = 0
    """Layers that keep no KV cache."""
    states: int = 0
    """Numbers that all layers with a state of fixed size keep together, for one sequence."""
    state_heads: int = 0
    """Heads or groups of a layer with a state, which ranks must divide; 0 if there is no such rule."""
    state_matrix: int = 0
    """Numbers of one such layer's recurrent state, without its convolution; 0 if unknown."""
    sparse: bool = False
    """Whether an indexer selects the tokens that a layer attends to (DeepSeek sparse attention)."""
    padded: bool = False
    """Whether the engine pads heads that ranks do not divide (NxD Inference); set by an accelerator's decisions."""

    def divides(self, ranks: int) -> bool:
        """Return whether tensor parallelism over so many ranks is possible."""
        return self.heads % ranks == 0 and (self.kv_heads % ranks == 0 or ranks % self.kv_heads == 0)

    def kv_elements(self, ranks: int) -> int:
        """Return the numbers that one rank keeps per token and layer."""
        return self.latent or 2 * self.kv_heads_of_rank(ranks) * self.head_size

    def kv_heads_of_rank(self, ranks: int) -> int:
        """Return the KV heads that one rank keeps.

        With padded heads, KV heads that neither divide the ranks nor are divided by them are kept once for each query
        head. Source: NxD Inference feature guide, GQA (CONVERT_TO_MHA), and its modules/attention/gqa.py.
        """
        if self.padded and self.kv_heads % ranks and ranks % self.kv_heads:
            return -(-self.heads // ranks)
        return max(1, self.kv_heads // ranks)

    def kv_bytes(self, tokens: int, size: int, ranks: int, chunk: int = 0) -> int:
        """Return the bytes that one sequence of so many tokens takes on one rank, with numbers of `size` bytes.

        While a prompt is computed `chunk` tokens at a time, a sliding layer keeps these in addition to its window.
        """
        full = (self.layers - self.cacheless - self.sliding_layers) * tokens
        sliding = self.sliding_layers * min(tokens, self.window + chunk)
        return (full + sliding) * self.kv_elements(ranks) * size + self.states * STATE_BYTES // ranks


def parse_geometry(config: Config) -> tuple[Geometry | None, str]:
    """Return the geometry; or None and the reason, for a model whose cache only vLLM can size.

    Raises ValueError that names the key that is missing or wrong.
    """
    key = _state_key(config)
    if not key:
        return _geometry(config), ""
    states = parse_states(config)
    if states is None:
        return None, f"its layers keep a state of their own ({key} in config.json), whose size only vLLM knows"
    geometry = _geometry(config)
    return geometry._replace(
        sliding_layers=0,
        cacheless=geometry.layers - min(states.attention_layers, geometry.layers),
        states=states.state_layers * states.numbers,
        state_heads=states.heads,
        state_matrix=states.matrix,
    ), ""


def _state_key(config: Config) -> str:
    """Return the key that names layers with a state of their own; empty if there are none."""
    keys = _RECURRENT if set(config.layer_kinds) <= _KINDS else ("layer_types", "layers_block_type")
    return next((key for key in keys if config.text.get(key)), "")


def _geometry(config: Config) -> Geometry:
    text = config.text
    heads = required_size(text, *_HEADS)
    layers = required_size(text, *_LAYERS)
    window = required_size(text, "sliding_window", default=0)
    experts = size(text, *_EXPERTS) or size(optional_table(text, "ffn_config") or {}, "moe_num_experts")  # DBRX
    return Geometry(
        layers=layers,
        sliding_layers=_sliding_layers(config, layers) if window else 0,
        window=window,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_size=_head_size(text, heads),
        latent=_latent(text),
        max_length=_max_length(config),
        stated_length=size(text, "model_max_length"),
        hidden=size(text, *_HIDDEN),
        vocabulary=size(text, *_VOCABULARY) or size(config.outer, *_VOCABULARY),
        intermediate=size(text, "intermediate_size_mlp", *_INTERMEDIATE),
        experts=experts,
        expert_width=size(text, "moe_intermediate_size", *_INTERMEDIATE) if experts else 0,
        sparse=bool(size(text, "index_topk")) or config.family in _SPARSE,
    )


def _sliding_layers(config: Config, layers: int) -> int:
    """Count the layers with a sliding window: as listed, or all but one in so many; 0 if no key tells."""
    if config.layer_kinds:
        return config.layer_kinds.count("sliding_attention")
    period = size(config.text, "sliding_window_pattern") or _FULL_EVERY.get(config.family, 0)
    return layers - layers // period if period else 0


def _kv_heads(text: Table, heads: int) -> int:
    """Return the heads of keys and values; as many as query heads if the model names none."""
    if text.get("multi_query") and not text.get("new_decoder_architecture"):  # Falcon, GPT-BigCode
        return required_size(text, "multi_query_group_num", default=1)
    attention = optional_table(text, "attn_config") or {}  # MPT, DBRX
    if "kv_n_heads" in attention:
        return required_size(attention, "kv_n_heads")
    return required_size(text, *_KV_HEADS, default=heads)


def _head_size(text: Table, heads: int) -> int:
    for key in ("head_dim", "hidden_size_per_head"):
        if text.get(key):
            return required_size(text, key)
    return required_size(text, *_HIDDEN) // heads


def _latent(text: Table) -> int:
    """Return the width of latent attention: compressed keys and values together, and the rotary part."""
    if text.get("kv_lora_rank") is None:
        return 0
    return required_size(text, "kv_lora_rank") + required_size(text, "qk_rope_head_dim")


def _max_length(config: Config) -> int | None:
    """Return the longest sequence in tokens, as vLLM derives it; None if the configuration names none."""
    text = config.text
    lengths = [required_size(text, key) for key in _LENGTHS if text.get(key) is not None]
    if not lengths:
        return None
    length = min(lengths)
    rope = optional_table(text, "rope_scaling") or optional_table(text, "rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "longrope":
        return required_size(config.outer, "original_max_position_embeddings", default=length)
    if kind in _SCALED_ALREADY or "gemma3" in config.family:
        return length
    factor = rope.get("factor")
    if factor is None:
        return length
    if not isinstance(factor, (int, float)) or not 0 < factor < _LARGEST_FACTOR:
        raise ValueError(f"factor of rope_scaling: found {str(factor)[:40]!r}, expected a number above zero")
    return int(length * factor)
