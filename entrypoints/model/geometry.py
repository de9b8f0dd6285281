"""A model's config.json → layers, heads and the size of its KV cache. Pure.

An error names the key that cannot be understood; no value is guessed.
"""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.model import keys
from entrypoints.model.config import NESTED, Config, Table, as_list, optional_table, read_size, required_size
from entrypoints.model.divided_sizes import DividedSize, parse_divided_sizes
from entrypoints.model.hybrid import STATE_BYTES, parse_states
from entrypoints.model.sparse import parse_sparse

_RECURRENT = (
    "mamba_d_state", "ssm_state_size", "state_size", "linear_num_key_heads", "linear_num_heads",
    "hybrid_override_pattern", "attn_layer_period", "attn_type_list", "rwkv_version", "linear_attn_config",
)  # fmt: skip
"""Keys of models whose layers keep a state of their own with, or instead of, a KV cache."""
_MARKS, _ATTENDS = "attn_type_list", 1
"""MiniMax's mark of each layer. MiniMax-M2.7 marks all layers as attention. Source: vLLM 0.32's config/model.py,
get_num_layers_by_block_type."""

_LARGEST_FACTOR = 1e6
"""By which a context is stretched; published factors are below 100."""
_MERGED_BELOW = 1.5
"""Ratio of the layers of two kinds below which vLLM pads the smaller kind to the larger one."""
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6}
"""One layer in so many attends to all tokens, in families that leave this to transformers' defaults."""

_UNROTATED = ("gpt2", "gpt_bigcode", "gpt_neo", "opt", "bloom", "mpt", "bert", "roberta", "xlm-roberta", "camembert",
              "distilbert", "electra", "whisper", "jamba")  # fmt: skip
"""Families without rotary embeddings: learned positions, ALiBi, or none."""

_SPARSE = ("deepseek_v32", "glm_moe_dsa")
"""Families whose indexer transformers 5 configures if config.json names none (GLM-5)."""

_GEMMA3 = "gemma3"
"""Stands for every kind of scaling in that family: vLLM takes its positions as they are."""
_LONGEST_KIND = 40
_STRETCHED = ("linear", "dynamic")
"""Kinds of rotary scaling whose table of rotations is as many times longer as the factor says."""

Version = tuple[int, ...]
_ANY, _NEWEST = (0,), (1 << 30,)
_ORIGINAL_FROM = (0, 16)
"""Since this version a model of LongRoPE starts with its original length, unless --max-model-len asks for more. Read in
vLLM 0.11 (not so) and 0.16 (so), config/model.py, _get_and_verify_max_len."""
_LONGROPE = ("longrope", "su")
"""vLLM's name, and the older one that it replaces. Source: transformers_utils/config.py, patch_legacy_rope_type."""
_SCALED_FROM = {
    **dict.fromkeys((*_LONGROPE, "llama3", _GEMMA3), _ANY),
    **dict.fromkeys(("yarn", "deepseek_yarn", "deepseek_llama_scaling", "telechat3-yarn"), (0, 30)),
}
"""Kind of rotary scaling → the first vLLM that expects the positions to be scaled already; other kinds multiply them by
their factor. vLLM turns telechat3-yarn into yarn since 0.30. Sources: vLLM 0.6 to 0.33, config/model.py,
_get_and_verify_max_len, and transformers_utils/config.py, patch_legacy_rope_type."""

_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "attention", "deepseek_sparse_attention",
          "indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention"}  # fmt: skip
"""Kinds of layers that keep a KV cache, with or without an indexer's, and no state."""


class Rope(NamedTuple):
    """The positions that a model was trained for, and how rotary embeddings stretch them."""

    positions: int = 0
    """The smallest of the configuration's lengths; 0 if it names none."""
    kind: str = "default"
    factor: float = 1.0
    original: int = 0
    """The length before scaling; 0 if the configuration does not name it."""

    def length(self, version: Version = _NEWEST) -> int | None:
        """Return the longest sequence in tokens, as this vLLM derives it; None if no length is known."""
        if self.kind in _LONGROPE and self.original and version >= _ORIGINAL_FROM:
            return self.original
        first = _SCALED_FROM.get(self.kind)
        if first is not None and version >= first:
            return self.positions or None
        return int((self.original if self.kind == "yarn" and self.original else self.positions) * self.factor) or None

    @property
    def asked(self) -> int:
        """The length up to which vLLM accepts --max-model-len though it starts with less: LongRoPE; 0 for others."""
        return self.positions if self.kind in _LONGROPE else 0

    def table_length(self) -> int:
        """Return the positions of vLLM's table of rotations; 0 if the configuration names no length.

        Source: vLLM 0.32 rotary_embedding/linear_scaling_rope.py, dynamic_ntk_scaling_rope.py,
        yarn_scaling_rope.py and base.py, _compute_cos_sin_cache.
        """
        factor = self.factor if self.kind in (*_STRETCHED, _GEMMA3) else 1.0
        yarn = self.original * self.factor if "yarn" in self.kind else 0
        return int(max(self.positions * factor, yarn))


class Geometry(NamedTuple):
    """The sizes that decide how a model splits and how large its KV cache is."""

    layers: int
    sliding_layers: int
    """Layers that attend to the last `window` tokens only."""
    window: int
    """Tokens; 0 for a model without a window, or that turns it off (use_sliding_window)."""
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
    experts_per_token: int = 0
    """Routed experts that compute each token."""
    expert_input: int = 0
    """Width that a layer's input is projected to for its experts; 0 if they take it as it is."""
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
    index_bytes: int = 0
    """Bytes per token that the indexers of sparse attention keep in all layers together; ranks do not divide them."""
    compressed: float = 0.0
    """Entries per token of all layers that keep one entry for many tokens, in addition to their sliding windows."""
    rope: Rope = Rope()
    plain_head_size: int = 0
    """Numbers of a head's keys if latent attention is computed as plain attention; 0 without latent attention."""
    rotary_size: int = 0
    """Numbers of one position's rotation: as many as a head has that are rotated; 0 without rotary embeddings."""
    divided_sizes: tuple[DividedSize, ...] = ()
    """Numbers in addition to the heads that ranks divide."""
    draft: Geometry | None = None
    """Of the layers that draft tokens, whose KV cache is a part of the model's; None without speculative decoding."""

    @property
    def without_latent(self) -> Geometry:
        """The geometry with latent attention computed as plain attention (VLLM_MLA_DISABLE=1).

        Every head has keys and values of the keys' width. Source: vLLM 0.32, model_executor/models/deepseek_v2.py,
        DeepseekV2Attention.
        """
        if not (self.latent and self.plain_head_size) or self.sparse:
            return self
        return self._replace(latent=0, kv_heads=self.heads, head_size=self.plain_head_size)

    @property
    def is_cut_to_window(self) -> bool:
        """Whether --disable-sliding-window shortens the model: vLLM then serves no more tokens than its window has.

        Source: vLLM 0.6 to 0.33, config/model.py, _get_and_verify_max_len.
        """
        return 0 < self.window < (self.max_length or 0)

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

    def kv_bytes(self, tokens: int, size: int, ranks: int, chunk: int = 0, spread: int = 1) -> int:
        """Return the bytes that one sequence of so many tokens takes on one rank, with numbers of `size` bytes.

        While a prompt is computed `chunk` tokens at a time, a sliding layer keeps these in addition to its window.
        Decode context parallelism spreads the tokens of layers that attend to all of them over `spread` ranks, and
        those of no other layer, nor the drafting ones (vLLM 0.32, v1/kv_cache_interface.py, dcp_sharded, and
        v1/worker/gpu/model_runner.py, get_kv_cache_spec).
        """
        whole, sliding = self._cached_layers()
        full = (whole + self.compressed) * -(-tokens // spread)
        entries = int(full) + sliding * min(tokens, self.window + chunk)
        sequence_bytes = (
            entries * self.kv_elements(ranks) * size + self.index_bytes * tokens + self.states * STATE_BYTES // ranks
        )
        return sequence_bytes + self.draft_bytes(tokens, size, ranks, chunk)

    def _cached_layers(self) -> tuple[int, int]:
        """Return the layers that keep all tokens and those that keep a window, with the padding of vLLM's groups.

        vLLM divides the layers of each kind into groups of one size: that of the smaller kind, or of the larger if this
        is less than one and a half times as large. The last group of a kind is padded. Source: vLLM 0.19 and 0.32,
        v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size.
        """
        full, sliding = self.layers - self.cacheless - self.sliding_layers, self.sliding_layers
        if not (full and sliding) or self.compressed:
            return full, sliding
        least, most = min(full, sliding), max(full, sliding)
        group = most if most < _MERGED_BELOW * least else least
        return -(-full // group) * group, -(-sliding // group) * group

    def draft_bytes(self, tokens: int, size: int, ranks: int, chunk: int = 0) -> int:
        """Return the part of these bytes that the layers take that draft tokens."""
        return self.draft.kv_bytes(tokens, size, ranks, chunk) if self.draft else 0


def parse_geometry(config: Config) -> tuple[Geometry | None, str]:
    """Return the geometry; or None and the reason, for a model whose cache only vLLM can size.

    Raises ValueError that names the key that is missing or wrong.
    """
    key = _state_key(config)
    if not key:
        return _make_geometry(config), ""
    states = parse_states(config)
    if states is None:
        return None, f"its layers keep a state of their own ({key} in config.json), whose size only vLLM knows"
    geometry = _make_geometry(config)
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
    attends = all(mark == _ATTENDS for mark in as_list(config.text, _MARKS))
    return next((key for key in keys if config.text.get(key) and not (key == _MARKS and attends)), "")


def _make_geometry(config: Config) -> Geometry:
    text = config.text
    heads = required_size(text, *keys.HEADS)
    layers = required_size(text, *keys.LAYERS)
    window = 0 if text.get("use_sliding_window") is False else required_size(text, "sliding_window", default=0)
    sparse = parse_sparse(config, layers)
    rope = _parse_rope(config)
    experts = read_size(text, *keys.EXPERTS) or read_size(
        optional_table(text, "ffn_config") or {}, "moe_num_experts"
    )  # DBRX
    return Geometry(
        layers=layers,
        sliding_layers=(layers if sparse.compressed else _sliding_layers(config, layers)) if window else 0,
        window=window,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_size=_head_size(text, heads),
        latent=_head_size(text, heads) if sparse.compressed else _read_latent_width(text),
        max_length=rope.length(),
        stated_length=read_size(text, "model_max_length"),
        hidden=read_size(text, *keys.HIDDEN),
        vocabulary=read_size(text, *keys.VOCABULARY) or read_size(config.outer, *keys.VOCABULARY),
        intermediate=read_size(text, "intermediate_size_mlp", *keys.INTERMEDIATE),
        experts=experts,
        expert_width=read_size(text, "moe_intermediate_size", *keys.INTERMEDIATE) if experts else 0,
        experts_per_token=read_size(text, *keys.EXPERTS_PER_TOKEN) if experts else 0,
        expert_input=read_size(text, "moe_latent_size", "routed_expert_hidden_size"),
        sparse=bool(sparse.index_bytes) or bool(read_size(text, "index_topk")) or config.family in _SPARSE,
        plain_head_size=read_size(text, "qk_nope_head_dim") + read_size(text, "qk_rope_head_dim")
        if _read_latent_width(text)
        else 0,
        index_bytes=sparse.index_bytes,
        compressed=sparse.compressed,
        rope=rope,
        rotary_size=0 if config.family in _UNROTATED else _rotary_size(text, heads),
        divided_sizes=parse_divided_sizes(config),
    )


def _sliding_layers(config: Config, layers: int) -> int:
    """Count the layers with a sliding window: as listed, or all but one in so many; 0 if no key tells."""
    if config.layer_kinds:
        return config.layer_kinds.count("sliding_attention")
    period = read_size(config.text, "sliding_window_pattern") or _FULL_EVERY.get(config.family, 0)
    return layers - layers // period if period else 0


def _kv_heads(text: Table, heads: int) -> int:
    """Return the heads of keys and values; as many as query heads if the model names none."""
    if text.get("multi_query") and not text.get("new_decoder_architecture"):  # Falcon, GPT-BigCode
        return required_size(text, "multi_query_group_num", default=1)
    attention = optional_table(text, "attn_config") or {}  # MPT, DBRX
    if "kv_n_heads" in attention:
        return required_size(attention, "kv_n_heads")
    return required_size(text, *keys.KV_HEADS, default=heads)


def _head_size(text: Table, heads: int) -> int:
    for key in ("head_dim", "hidden_size_per_head"):
        if text.get(key) is not None:
            return required_size(text, key)
    return required_size(text, *keys.HIDDEN) // heads


def _rotary_size(text: Table, heads: int) -> int:
    """Return how many numbers of a head rotary embeddings rotate."""
    share = text.get("partial_rotary_factor", 1.0)
    rotated = read_size(text, "qk_rope_head_dim", "rotary_dim") or _head_size(text, heads)
    return int(rotated * share) if isinstance(share, float) and 0 < share < 1 else rotated


def _read_latent_width(text: Table) -> int:
    """Return the width of latent attention: compressed keys and values together, and the rotary part."""
    if text.get("kv_lora_rank") is None:
        return 0
    rotary = 0 if text.get("qk_rope_head_dim") == 0 else required_size(text, "qk_rope_head_dim")
    return required_size(text, "kv_lora_rank") + rotary


def _parse_rope(config: Config) -> Rope:
    """Return the positions and their scaling. Raises ValueError."""
    lengths = [required_size(config.text, key) for key in keys.LENGTHS if config.text.get(key) is not None]
    rope = _scale_positions(Rope(min(lengths, default=0)), config.text)
    if rope.kind in _LONGROPE:
        return rope._replace(original=read_size(config.outer, "original_max_position_embeddings"))
    return rope._replace(kind=_GEMMA3) if "gemma3" in config.family else rope


def override_geometry(geometry: Geometry, overrides: Table, version: Version) -> Geometry:
    """Return the geometry with the length that this vLLM derives from overrides of config.json. Raises ValueError.

    Objects are merged key by key, as vLLM does (config/model.py, _update_nested).
    """
    nested = next((table for key in NESTED if (table := optional_table(overrides, key))), {})
    text = {**overrides, **nested}
    lengths = [required_size(text, key) for key in keys.LENGTHS if text.get(key) is not None]
    rope = _scale_positions(geometry.rope._replace(positions=min(lengths, default=geometry.rope.positions)), text)
    if rope == geometry.rope and rope.length() == rope.length(version):
        return geometry
    return geometry._replace(rope=rope, max_length=rope.length(version))


def _scale_positions(rope: Rope, text: Table) -> Rope:
    """Return the positions with the scaling of `rope_scaling` or `rope_parameters`. Raises ValueError."""
    scaling = optional_table(text, "rope_scaling") or optional_table(text, "rope_parameters") or {}
    scaling = optional_table(scaling, "full_attention") or scaling  # one object for each kind of layer
    kind = str(scaling.get("rope_type") or scaling.get("type") or rope.kind)[:_LONGEST_KIND]
    factor = scaling.get("factor") if scaling.get("factor") is not None else rope.factor
    if not isinstance(factor, (int, float)) or not 0 < factor < _LARGEST_FACTOR:
        raise ValueError(f"factor of rope_scaling: found {str(factor)[:40]!r}, expected a number above zero")
    original = read_size(scaling, "original_max_position_embeddings") or rope.original
    return rope._replace(kind=rope.kind if rope.kind == _GEMMA3 else kind, factor=factor, original=original)
