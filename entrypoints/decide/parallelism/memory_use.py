"""The memory that weights and the KV cache take on one device under a split. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.decide.parallelism.multimodal import Encoder
from entrypoints.decide.parallelism.rules import Rules, Split
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts

ESTIMATE_MARGIN = 1.03
"""Factor for weights estimated from config.json, which can be larger; see tests/models."""

_EXPANDS = "kv_b_proj"
"""vLLM's name of the matrix that expands latent keys and values."""


class DeviceMemory(NamedTuple):
    """The memory of one device."""

    total: int
    share: float
    """Of the total, for vLLM."""
    offload: int = 0
    """Bytes of weights that stay in the host's memory (--cpu-offload-gb)."""
    cache: int | None = None
    """The KV cache's size if the user set it (--kv-cache-memory-bytes); the share then has no effect."""
    blocks: int = 0
    """The KV cache's blocks if the user set them (--num-gpu-blocks-override), which are allocated whatever is free."""
    encoder: Encoder = Encoder()
    """What images and recordings take."""


def stage_share(geometry: Geometry | None, pipeline: int) -> float:
    """Return the largest pipeline stage's share of the layers."""
    return -(-geometry.layers // pipeline) / geometry.layers if geometry else 1 / pipeline


def last_stage_share(geometry: Geometry | None, pipeline: int) -> float:
    """Return the last stage's share of the layers: none of those that remain (vLLM distributed/utils.py)."""
    return geometry.layers // pipeline / geometry.layers if geometry else 1 / pipeline


def weights_of_rank(model: ModelFacts, rules: Rules, split: Split, share: float | None = None) -> int:
    """Return the bytes of weights on one device; a pipeline stage can hold the embeddings in addition to its layers.

    `share` is the stage's of the layers, without it that of the largest.
    """
    if not model.weights:
        return 0
    share = stage_share(model.geometry, split.pipeline) if share is None else share
    return _of_rank(model, rules, split, model.weights.loaded(rules.element), share) + _compute_table_bytes(
        model, rules, split
    )


def _compute_table_bytes(model: ModelFacts, rules: Rules, split: Split) -> int:
    """Return the bytes that vLLM computes from the weights' configuration while loading, and keeps with them.

    Each rank has the rotary table of all positions (2.5 GiB for Llama 4's 10 million), and its part of a second copy of
    the matrices that expand latent keys and values. Source: vLLM 0.19 and 0.32, layers/rotary_embedding/base.py,
    _compute_cos_sin_cache; layers/attention/mla_attention.py, process_weights_after_loading.
    """
    geometry = model.geometry
    if geometry is None:
        return 0
    expanding = sum(linear.numbers for linear in model.linears if _EXPANDS in linear.names)
    copies = int(expanding * stage_share(geometry, split.pipeline)) // split.tensor
    return (geometry.rope.table_length() * geometry.rotary_size + copies) * rules.element


def _of_rank(model: ModelFacts, rules: Rules, split: Split, loaded: int, share: float) -> int:
    geometry = model.geometry
    if model.estimated:
        loaded = int(loaded * ESTIMATE_MARGIN)
    embedding = 0
    if split.pipeline > 1 and geometry:
        embedding = min(loaded, geometry.vocabulary * geometry.hidden * rules.element)
    body = (loaded - embedding) * share
    experts = body * model.expert_share
    return int(body - experts + embedding) // split.tensor + int(experts) // (split.tensor * split.engines) + 1


def peak_of_rank(model: ModelFacts, rules: Rules, split: Split) -> int:
    """Return the bytes of one device's weights while loading; 0 if they are no more than afterwards."""
    if model.weights is None or not model.weights.until_loaded:
        return 0
    share = stage_share(model.geometry, split.pipeline)
    return _of_rank(model, rules, split, model.weights.peak(rules.element), share)


class KvCache(NamedTuple):
    """The size of sequences in one device's KV cache."""

    geometry: Geometry
    element: int
    block: int
    chunk: int
    """Tokens of a prompt that are computed at once."""
    spread: int = 1
    """Ranks over which decode context parallelism spreads the tokens of a sequence, in blocks of so many times the
    size (vLLM 0.32, v1/core/kv_cache_utils.py, resolve_dcp_kv_block_size)."""

    def bytes(self, tokens: int, split: Split) -> int:
        """Return the bytes of one sequence, in whole blocks."""
        block = self.block * self.spread
        block_tokens = -(-tokens // block) * block
        one = self.geometry.kv_bytes(block_tokens, self.element, split.tensor, self.chunk, self.spread)
        draft = self.geometry.draft_bytes(
            block_tokens, self.element, split.tensor, self.chunk
        )  # the last stage has all of it
        return int((one - draft) * stage_share(self.geometry, split.pipeline)) + draft

    def tokens(self, free_bytes: int, length: int, split: Split) -> int:
        """Return the number of tokens that fit in sequences of this length."""
        one = self.bytes(length, split)
        return max(0, free_bytes) * length // one if one else 0

    def longest(self, free_bytes: int, most: int, split: Split) -> int:
        """Return the length of the longest sequence that fits, in whole blocks and at most `most`."""
        if self.bytes(most, split) <= free_bytes:
            return most
        low, high = 0, most // self.block
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes(middle * self.block, split) <= free_bytes:
                low = middle
            else:
                high = middle - 1
        return low * self.block
