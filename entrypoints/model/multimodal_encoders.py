"""The towers of a multimodal model: what turns the largest image or recording into embeddings. Pure.

vLLM reserves memory for them when it profiles: multimodal/encoder_budget.py and v1/worker/gpu_model_runner.py
(profile_run) of vLLM 0.32.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

from entrypoints.model.config import Config, Table, as_list, read_size

_LARGEST = 16384
"""Embeddings of the largest image of a tower that takes any size: 12,845,056 pixels, of 28 by 28 each (max_pixels in
Qwen2-VL's preprocessor_config.json; Qwen3-VL's: 16,777,216 pixels, of 32 by 32)."""
_COLOURS = 3
_RECORDING = 1500
"""Positions of half a minute, Whisper's longest piece."""
_PASSES = 6
"""Vectors per position that one layer keeps at a time: input, queries, keys, values, output, sum."""


class Tower(NamedTuple):
    """One tower, and its largest item."""

    kind: str
    """image, audio"""
    tokens: int
    """Embeddings that the language model gets."""
    positions: int
    """Positions that the tower computes."""
    width: int
    inner: int
    """Width of a layer's feed-forward part."""
    pixels: int = 0
    """Pixels of one embedding, for towers that take images of any size; 0 for others."""
    heads: int = 0
    """Heads that ranks divide; 0 if the configuration does not name them, or each rank has the whole tower.

    Ranks have the whole of an audio tower, which is a class of transformers (Qwen2-Audio in vLLM 0.32)."""
    numbers: int = 0
    """Numbers of one position's part of the item: colours of its pixels."""

    def activations(self, items: int, element: int) -> int:
        """Return the bytes that the tower takes while it computes so many items at once."""
        return items * self.positions * (_PASSES * self.width + 2 * self.inner) * element

    def item_bytes(self, items: int, element: int) -> int:
        """Return the bytes of so many items themselves, which vLLM keeps on the device while it profiles."""
        return items * self.positions * self.numbers * element

    def limited(self, most: int) -> Tower:
        """Return the tower for images of at most so many pixels."""
        if not self.pixels or most >= self.tokens * self.pixels:
            return self
        return self.of_tokens(max(1, most // self.pixels))

    def of_tokens(self, most: int) -> Tower:
        """Return the tower for items, or parts of items, of at most so many embeddings."""
        tokens = min(most, self.tokens)
        return self._replace(tokens=tokens, positions=self.positions * tokens // self.tokens)


def parse_towers(config: Config) -> tuple[Tower, ...]:
    """Return a model's towers, without those whose configuration does not name their width."""
    towers = (_parse_vision_tower(config.vision, config.outer), _parse_audio_tower(config.audio))
    return tuple(tower for tower in towers if tower is not None)


def _parse_vision_tower(table: Table, outer: Table) -> Tower | None:
    width = read_size(table, "embed_dim", "vt_hidden_size", "hidden_size", "width")
    patch = read_size(table, "patch_size", "spatial_patch_size")
    if not width or not patch:
        return None
    inner = read_size(table, "intermediate_size", "vt_intermediate_size", "mlp_dim") or 4 * width
    merge, heads = (
        _read_merge_size(table, outer),
        read_size(table, "num_heads", "num_attention_heads", "vt_num_attention_heads"),
    )
    side = read_size(table, "image_size")
    numbers = _COLOURS * patch * patch
    if not side:
        most = read_size(table, "init_pos_emb_height") * read_size(table, "init_pos_emb_width") // merge or _LARGEST
        return Tower("image", most, most * merge, width, inner, patch * patch * merge, heads, numbers)
    tiles = _count_image_tiles(outer, table)
    positions = (side // patch) ** 2
    tokens = read_size(outer, "mm_tokens_per_image", "image_seq_length", "num_image_token") or max(
        1, positions // merge
    )
    return Tower("image", tiles * tokens, tiles * positions, width, inner, heads=heads, numbers=numbers)


def _read_merge_size(table: Table, outer: Table) -> int:
    """Return how many positions become one embedding."""
    sides = as_list(table, "merge_kernel_size")
    if sides and all(isinstance(side, int) and 0 < side < _RECORDING for side in sides):
        return int(sides[0]) * int(sides[-1])
    side = read_size(table, "spatial_merge_size", "merge_size") or read_size(outer, "spatial_merge_size")
    ratio = outer.get("downsample_ratio", table.get("pixel_shuffle_ratio"))
    if not side and isinstance(ratio, float) and 0 < ratio < 1:
        side = round(1 / ratio)
    return min(side or 1, _RECORDING) ** 2


def _count_image_tiles(outer: Table, table: Table) -> int:
    """Return how many pieces the largest image is cut into, the whole image in small among them."""
    listed = read_size(outer, "max_dynamic_patch") or read_size(table, "max_dynamic_patch", "max_num_tiles")
    side = read_size(table, "image_size")
    for pair in as_list(outer, "image_grid_pinpoints"):
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, int) for one in pair):  # noqa: PLR2004
            listed = max(listed, pair[0] * pair[1] // side**2)
    return min(listed, isqrt(_LARGEST)) + 1 if listed else 1


def _parse_audio_tower(table: Table) -> Tower | None:
    width = read_size(table, "d_model", "hidden_size", "encoder_dim")
    if not width:
        return None
    inner = read_size(table, "encoder_ffn_dim", "intermediate_size") or 4 * width
    positions = read_size(table, "max_source_positions") or _RECORDING
    return Tower("audio", max(1, positions // 2), positions, width, inner)
