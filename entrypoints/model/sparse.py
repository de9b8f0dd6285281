"""Sparse attention: its indexer's cache, and caches that hold one entry for many tokens. Pure.

Sources: vLLM 0.32's model_executor/models/deepseek_v2.py (DeepseekV32IndexerCache), models/deepseek_v4/attention.py
(get_kv_cache_spec, DeepseekV4IndexerCache) and models/minimax_m3/common/indexer.py.
"""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.model.config import Config, Table, as_list, optional_table, read_size

_SCALED, _SCALE_BYTES = 128, 4
"""An indexer's key is 8-bit, with one float32 scale for so many numbers."""
_BFLOAT16 = 2
_INDEXED_RATIO = 4
"""DeepSeek-V4's layers that keep one entry for so many tokens have an indexer; those with a higher ratio have none."""


class Sparse(NamedTuple):
    """What sparse attention caches."""

    index_bytes: int = 0
    """Bytes per token that all layers' indexers keep; ranks do not divide them."""
    compressed: float = 0.0
    """Entries per token that all compressing layers keep together; 0 for models that compress nothing."""


def parse_sparse(config: Config, layers: int) -> Sparse:
    """Return what a model's indexers and compressing layers cache. Raises ValueError that names a wrong key."""
    text = config.text
    ratios = _read_compress_ratios(config)
    if ratios:
        indexed = sum(ratio == _INDEXED_RATIO for ratio in ratios)
        compressed = sum(1 / ratio for ratio in ratios if ratio > 1)
        return Sparse(indexed * _key_bytes(text) // _INDEXED_RATIO, compressed)
    separate = optional_table(text, "sparse_attention_config") or {}  # MiniMax-M3
    if separate:
        return Sparse(_separate_layers(separate, layers) * read_size(separate, "sparse_index_dim") * _BFLOAT16)
    return Sparse(_count_indexers(config, layers) * _key_bytes(text))


def _read_compress_ratios(config: Config) -> tuple[int, ...]:
    """Return how many tokens share an entry in each layer; empty for models that compress nothing."""
    listed = as_list(config.text, "compress_ratios")
    rates = optional_table(config.text, "compress_rates") or {}
    if not listed and rates:  # as transformers writes it
        listed = [rates.get(kind, 0) for kind in config.layer_kinds]
    layers = read_size(config.text, "num_hidden_layers")
    return tuple(ratio for ratio in listed[:layers] if isinstance(ratio, int) and ratio >= 0)


def _key_bytes(text: Table) -> int:
    """Return the bytes of one token's key in one indexer."""
    numbers = read_size(text, "index_head_dim")
    return numbers + numbers // _SCALED * _SCALE_BYTES


def _count_indexers(config: Config, layers: int) -> int:
    """Count the layers that have an indexer of their own; others share the choice of one below."""
    text = config.text
    indexed = config.layer_kinds.count("indexed_attention")
    kinds = as_list(text, "indexer_types")[:layers]
    if indexed or kinds:
        return min(indexed or layers, kinds.count("full") if kinds else layers)
    period, first = read_size(text, "index_topk_freq") or 1, read_size(text, "index_skip_topk_offset") or 2
    return min(layers, first) + max(0, layers - first) // period


def _separate_layers(separate: Table, layers: int) -> int:
    """Count MiniMax-M3's layers with sparse attention: as listed, or all."""
    listed = as_list(separate, "sparse_attention_freq")[:layers]
    return sum(bool(one) for one in listed) if listed else layers
