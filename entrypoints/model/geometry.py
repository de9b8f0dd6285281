"""A model's config.json → layers, heads and what its KV cache takes. Pure.

Configurations differ by model family and may nest the language model's own. What is not understood is said, by key, and
never replaced by a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.model.hybrid import STATE_BYTES, parse_states

_NESTED = ("text_config", "llm_config", "language_config", "decoder", "thinker_config")
_LAYERS = ("decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("decoder_attention_heads", "num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "n_kv_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Names that vLLM 0.32 looks for, from its model_arch_config_convertor.py."""

_INTERMEDIATE = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "hidden_dim")
_VOCABULARY = ("vocab_size", "padded_vocab_size")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

_RECURRENT = (
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
    "linear_num_key_heads",
    "hybrid_override_pattern",
    "attn_layer_period",
    "attn_type_list",
    "rwkv_version",
    "compress_ratios",
)
"""Keys of models whose layers keep a state of their own beside, or instead of, a KV cache."""

_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6}
"""Of how many layers one attends to everything, in families whose configurations do not say; transformers' defaults."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
}
"""What published configurations of a family leave to transformers: its configuration_gemma3.py."""

_SCALED_ALREADY = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope")
"""Kinds of rotary scaling whose factor vLLM 0.32 does not apply to the length once more."""


class Geometry(NamedTuple):
    """What decides how a model splits and what its KV cache takes."""

    layers: int
    sliding_layers: int
    """Of these, layers that look back `window` tokens only."""
    window: int
    heads: int
    kv_heads: int
    head_size: int
    latent: int
    """Numbers per token and layer of multi-head latent attention, which does not split over ranks; 0 without."""
    max_length: int | None
    hidden: int = 0
    """Width of a layer's input; this and all below are 0 where the configuration does not say."""
    vocabulary: int = 0
    intermediate: int = 0
    """Width of a dense layer's feed-forward part."""
    experts: int = 0
    expert_width: int = 0
    """Width of one expert's feed-forward part."""
    cacheless: int = 0
    """Of the layers, those that keep no KV cache."""
    states: int = 0
    """Numbers that all layers with a state of fixed size keep for one sequence."""

    def divides(self, ranks: int) -> bool:
        """Tell whether tensor parallelism over so many ranks is possible."""
        return self.heads % ranks == 0 and (self.kv_heads % ranks == 0 or ranks % self.kv_heads == 0)

    def kv_elements(self, ranks: int) -> int:
        """Return the numbers that one rank keeps per token and layer."""
        return self.latent or 2 * max(1, self.kv_heads // ranks) * self.head_size

    def kv_bytes(self, tokens: int, size: int, ranks: int, chunk: int = 0) -> int:
        """Return what one sequence of so many tokens takes on one rank, with numbers of `size` bytes.

        While a prompt is computed `chunk` tokens at a time, a sliding layer keeps those beside its window.
        """
        full = (self.layers - self.cacheless - self.sliding_layers) * tokens
        sliding = self.sliding_layers * min(tokens, self.window + chunk)
        return (full + sliding) * self.kv_elements(ranks) * size + self.states * STATE_BYTES // ranks


def parse_geometry(config: Mapping[str, Any]) -> tuple[Geometry | None, str]:
    """Understand a configuration; None and why for models whose cache only vLLM can tell.

    Raises ValueError naming the key that is missing or wrong.
    """
    text = text_config(config)
    kinds = {str(kind) for kind in _list(text, "layer_types")}
    other = sorted(kinds - {"full_attention", "sliding_attention", "chunked_attention"})
    key = "layer_types" if other else next((key for key in _RECURRENT if text.get(key)), "")
    states = parse_states(text) if key else None
    if states:
        geometry = _geometry(config, text)
        keeping = min(states.attention_layers, geometry.layers)
        numbers = states.state_layers * states.numbers
        return geometry._replace(sliding_layers=0, cacheless=geometry.layers - keeping, states=numbers), ""
    if key:
        return None, f"its layers keep a state of their own ({key} in config.json), whose size only vLLM knows"
    return _geometry(config, text), ""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's own part of a configuration, with what its family leaves out."""
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, dict):
            return text_config(nested)
    return {**_DEFAULTS.get(str(config.get("model_type")), {}), **config}


def _geometry(config: Mapping[str, Any], text: Mapping[str, Any]) -> Geometry:
    heads = _first(text, _HEADS)
    window, experts, layers = _first(text, ("sliding_window",), 0), _experts(text), _first(text, _LAYERS)
    sliding = _sliding_layers(text, layers) if window else 0
    return Geometry(
        layers=layers,
        sliding_layers=sliding,
        window=window,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_size=_head_size(text, heads),
        latent=_latent(text),
        max_length=_max_length(config, text),
        hidden=_size(text, _HIDDEN),
        vocabulary=_size(text, _VOCABULARY) or _size(config, _VOCABULARY),
        intermediate=_size(text, ("intermediate_size_mlp", *_INTERMEDIATE)),
        experts=experts,
        expert_width=_size(text, ("moe_intermediate_size", *_INTERMEDIATE)) if experts else 0,
    )


def _sliding_layers(text: Mapping[str, Any], layers: int) -> int:
    """Count the layers that look back a window: as listed, else all but one of so many; 0 where nothing says."""
    kinds = _list(text, "layer_types")
    if kinds:
        return kinds.count("sliding_attention")
    every = _size(text, ("sliding_window_pattern",)) or _FULL_EVERY.get(str(text.get("model_type")), 0)
    return layers - layers // every if every else 0


def _list(text: Mapping[str, Any], key: str) -> list[Any]:
    value = text.get(key)
    return value if isinstance(value, list) else []


def _first(text: Mapping[str, Any], keys: tuple[str, ...], default: int | None = None) -> int:
    """Return the first of several names' whole number above zero; raises ValueError with what is wrong."""
    for key in keys:
        value = text.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{key}: found {str(value)[:40]!r}, expected a whole number above zero")
        return value
    if default is None:
        raise ValueError(f"{' or '.join(keys)}: missing, expected a whole number above zero")
    return default


def _size(text: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    """Return the first of several names' whole number; 0 where there is none that holds for all layers."""
    for key in keys:
        value = text.get(key)
        values = value if isinstance(value, list) else [value]
        number = values[0] if values and all(item == values[0] for item in values) else None
        if isinstance(number, int) and not isinstance(number, bool) and number > 0:
            return number
    return 0


def _experts(text: Mapping[str, Any]) -> int:
    nested = text.get("ffn_config")  # DBRX
    return _size(text, _EXPERTS) or (_size(nested, ("moe_num_experts",)) if isinstance(nested, dict) else 0)


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    """Return the heads of keys and values; a model that names none has as many as of queries."""
    if text.get("multi_query") and not text.get("new_decoder_architecture"):  # Falcon, GPT-BigCode
        return _first(text, ("multi_query_group_num",), 1)
    nested = text.get("attn_config")  # MPT, DBRX
    if isinstance(nested, dict) and "kv_n_heads" in nested:
        return _first(nested, ("kv_n_heads",))
    return _first(text, _KV_HEADS, heads)


def _head_size(text: Mapping[str, Any], heads: int) -> int:
    if text.get("head_dim"):
        return _first(text, ("head_dim",))
    if text.get("hidden_size_per_head"):
        return _first(text, ("hidden_size_per_head",))
    return _first(text, _HIDDEN) // heads


def _latent(text: Mapping[str, Any]) -> int:
    """Return the width of latent attention: compressed keys and values together, and the rotary part."""
    if text.get("kv_lora_rank") is None:
        return 0
    return _first(text, ("kv_lora_rank",)) + _first(text, ("qk_rope_head_dim",))


def _max_length(config: Mapping[str, Any], text: Mapping[str, Any]) -> int | None:
    """Return the longest sequence as vLLM derives it; None when the configuration names none."""
    lengths = [_first(text, (key,)) for key in _LENGTHS if text.get(key) is not None]
    if not lengths:
        return None
    length = min(lengths)
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    rope = scaling if isinstance(scaling, dict) else {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "longrope":
        return _first(config, ("original_max_position_embeddings",), length)
    if kind in _SCALED_ALREADY or "gemma3" in str(config.get("model_type")):
        return length
    factor = rope.get("factor")
    return int(length * factor) if isinstance(factor, (int, float)) else length
