"""The names that config.json of different model families has for the same size.

Source: vLLM 0.32's transformers_utils/model_arch_config_convertor.py, ModelArchConfigConvertorBase.
"""

from __future__ import annotations

LAYERS = ("decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("decoder_attention_heads", "num_attention_heads", "n_head", "n_heads")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "n_kv_heads", "multi_query_group_num",
            "num_attention_groups")  # fmt: skip
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
           "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len")  # fmt: skip
INTERMEDIATE = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "hidden_dim", "decoder_ffn_dim")
VOCABULARY = ("vocab_size", "padded_vocab_size")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k")

SAME = (LAYERS, HEADS, HIDDEN, KV_HEADS, LENGTHS, INTERMEDIATE, VOCABULARY, EXPERTS)
"""Groups of names: a configuration that has one of a group leaves none of that group out."""

_ALONE = ("head_dim", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
          "sliding_window", "moe_intermediate_size", "n_shared_experts", "first_k_dense_replace", "index_head_dim",
          "index_n_heads", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
          "linear_value_head_dim", "linear_conv_kernel_dim", "patch_size", "image_size", "spatial_merge_size", "depth",
          "embed_dim", "mm_tokens_per_image", "encoder_layers", "encoder_ffn_dim", "max_source_positions",
          "num_mel_bins", "out_hidden_size")  # fmt: skip

DEFAULTED = (*(name for group in SAME for name in group), *_ALONE)
"""Names that a configuration may leave to its family's defaults."""


STATED = (*(name for group in SAME for name in group), "moe_intermediate_size", "n_shared_experts", "sliding_window")
"""Names that transformers leaves out of nested parts only: without them, a part that is not nested is incomplete, or
the model has no such part.
"""


def list_alike_keys(name: str) -> tuple[str, ...]:
    """Return all names for the same size."""
    return next((group for group in SAME if name in group), (name,))
