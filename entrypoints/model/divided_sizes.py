"""The numbers of config.json, other than heads of the usual layers, that tensor-parallel ranks divide. Pure.

Each stands for a statement of one of vLLM 0.32's classes, which is named where the number is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

from entrypoints.model.config import Config, Table, as_list, optional_table, read_size


class DividedSize(NamedTuple):
    """A number that ranks divide among them."""

    title: str
    """What is counted, for reasons."""
    number: int
    is_repeated: bool = False
    """Whether several ranks may keep the same one if there are more ranks: heads of keys and values."""

    def allows(self, ranks: int) -> bool:
        """Return whether so many ranks can divide it."""
        return self.number % ranks == 0 or (self.is_repeated and ranks % self.number == 0)


def parse_divided_sizes(config: Config) -> tuple[DividedSize, ...]:
    """Return the numbers that a configuration names. Raises ValueError that names a wrong key."""
    return tuple(divided for divided in _divided_sizes(config.text) if divided.number)


def _divided_sizes(text: Table) -> Iterator[DividedSize]:
    # deepseek_v4/attention.py and deepseek_v41/attention.py (n_local_groups), vllm-ascend's deepseek_v4/model.py:
    # both round down, so that a rank has no group at all, or ranks have different ones
    yield DividedSize("groups of the attention's output (o_groups)", read_size(text, "o_groups"))
    yield DividedSize(
        "groups of the norm (group_norm_size)", read_size(text, "group_norm_size")
    )  # bailing_linear_attn.py
    indexer = optional_table(text, "sparse_attention_config") or {}  # minimax_m3/common/indexer.py
    yield DividedSize("heads of the indexer", read_size(indexer, "sparse_num_index_heads"), is_repeated=True)
    yield from _heads_of_other_layers(text)


def _heads_of_other_layers(text: Table) -> Iterator[DividedSize]:
    """Yield the heads of layers that have other numbers of them than `num_attention_heads` says."""
    # mimo_v2.py, dots3_note/nvidia/model.py, inkling/nvidia/model.py
    yield DividedSize("heads of the sliding layers", read_size(text, "swa_num_attention_heads"))
    yield DividedSize("KV heads of the sliding layers", read_size(text, "swa_num_key_value_heads"), is_repeated=True)
    # gemma4.py: transformers gives layers that attend to all tokens this number
    yield DividedSize("KV heads of the global layers", read_size(text, "num_global_key_value_heads"), is_repeated=True)
    other = optional_table(text, "attention_other_setting") or {}  # step3p5.py
    yield DividedSize("heads of the other layers", read_size(other, "num_attention_heads"))
    yield DividedSize("KV heads of the other layers", read_size(other, "num_attention_groups"), is_repeated=True)
    listed = [heads for heads in as_list(text, "num_attention_heads_per_layer") if isinstance(heads, int)]  # laguna.py
    yield DividedSize("heads that all layers have in common", gcd(*listed))
