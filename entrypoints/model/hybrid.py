"""Layers that keep a state of fixed size with, or instead of, a KV cache: Mamba, gated delta nets. Pure.

The state's size follows from keys of config.json, as vLLM computes it in model_executor/layers/mamba/mamba_utils.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from entrypoints.model.config import Config, Table, count_listed_layers, optional_table, read_size

STATE_BYTES = 4
"""Bytes of one number of a state: vLLM keeps at most float32."""

_ATTENTION = ("full_attention", "attention", "hybrid", "indexed_attention")
"""Kinds of layers that attend."""


class States(NamedTuple):
    """How many layers attend, and how many keep a state."""

    attention_layers: int
    state_layers: int
    numbers: int
    """Numbers in one layer's state, for one sequence."""
    heads: int = 0
    """Number that tensor-parallel ranks must divide, of one layer's heads or groups; 0 if there is no such rule."""
    matrix: int = 0
    """Of `numbers`, those of the recurrent state, without the convolution's window; 0 if unknown."""


class Mamba(NamedTuple):
    """Sizes of a Mamba layer; 0 for what the configuration does not name."""

    heads: int
    head_size: int
    state: int
    groups: int
    window: int
    """Tokens that the convolution keeps."""
    expand: int
    """Width of a Mamba 1 layer, as a multiple of the layer's input."""


class DeltaNet(NamedTuple):
    """Sizes of a gated delta net's layer; 0 for what the configuration does not name."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    window: int
    """Tokens that the convolution keeps."""


def parse_states(config: Config) -> States | None:
    """Return how many layers attend and how many keep a state; None if the keys do not answer both."""
    numbers = _state_numbers(config.text)
    heads, matrix = _state_heads(config.text), _state_matrix(config.text)
    attention = _attention_layers(config)
    layers = read_size(config.text, "num_hidden_layers")
    if not (numbers and layers and attention is not None and 0 <= attention <= layers):
        return None
    if "falcon_h1" in config.family:  # every layer attends and keeps a state
        return States(layers, layers, numbers, heads, matrix)
    keeping = config.pattern.count("M") if config.pattern else layers - attention
    return States(attention, keeping, numbers, heads, matrix)


def parse_mamba(text: Table) -> Mamba:
    """Return the sizes of Mamba layers."""
    return Mamba(
        heads=read_size(text, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads"),
        head_size=read_size(text, "mamba_d_head", "mamba_head_dim"),
        state=read_size(text, "mamba_d_state", "ssm_state_size"),
        groups=read_size(text, "mamba_n_groups", "mamba_ngroups", "n_groups") or 1,
        window=max(0, read_size(text, "mamba_d_conv", "conv_kernel") - 1),
        expand=read_size(text, "mamba_expand"),
    )


def parse_delta_net(text: Table) -> DeltaNet:
    """Return the sizes of gated delta nets, and of Kimi's delta attention, whose keys and values are alike."""
    linear_config = optional_table(text, "linear_attn_config") or {}
    heads = read_size(linear_config, "num_heads") or read_size(text, "linear_num_heads")
    width = read_size(linear_config, "head_dim") or read_size(text, "linear_head_dim")
    kernel = read_size(linear_config, "short_conv_kernel_size") or read_size(text, "linear_conv_kernel_dim")
    return DeltaNet(
        key_heads=heads or read_size(text, "linear_num_key_heads"),
        value_heads=heads or read_size(text, "linear_num_value_heads"),
        key_size=width or read_size(text, "linear_key_head_dim"),
        value_size=width or read_size(text, "linear_value_head_dim"),
        window=max(0, kernel - 1),
    )


def _attention_layers(config: Config) -> int | None:
    """Count the layers that attend; None if no known key tells."""
    text = config.text
    if config.layer_kinds:
        return sum(kind in _ATTENTION for kind in config.layer_kinds)
    if config.pattern:
        return config.pattern.count("*")
    linear = optional_table(text, "linear_attn_config")
    if linear is not None:  # Kimi Linear
        layers = read_size(text, "num_hidden_layers")
        return count_listed_layers(linear, "full_attn_layers", range(1, layers + 1)) or None
    return _periodic_layers(config)


def _periodic_layers(config: Config) -> int | None:
    """Count the layers that attend of those that repeat; None if no known key tells."""
    text = config.text
    layers, period = read_size(text, "num_hidden_layers"), read_size(text, "attn_layer_period")
    if period:  # Jamba
        return len(range(read_size(text, "attn_layer_offset"), layers, period))
    if isinstance(text.get("attn_layer_indices"), list):  # Bamba
        return count_listed_layers(text, "attn_layer_indices", range(layers))
    every = read_size(text, "full_attention_interval")  # Qwen3-Next
    if every:
        return layers // every
    return 0 if "falcon_h1" in config.family else None


def _state_heads(text: Table) -> int:
    """Return the number that ranks must divide: heads and groups, or one group.

    Source: vLLM 0.32 mamba_mixer2.py, MambaMixer2.__init__; gdn.
    """
    net, mamba = parse_delta_net(text), parse_mamba(text)
    if net.key_heads and net.value_heads:
        return math.gcd(net.key_heads, net.value_heads)
    return mamba.heads if mamba.groups == 1 else math.gcd(mamba.heads, mamba.groups)


def _state_matrix(text: Table) -> int:
    """Return the numbers of one layer's recurrent state; 0 for Mamba 1 and for what is not known."""
    net, mamba = parse_delta_net(text), parse_mamba(text)
    if net.key_heads and net.value_heads:
        return net.value_heads * net.key_size * net.value_size
    return mamba.heads * mamba.head_size * mamba.state


def _state_numbers(text: Table) -> int:
    """Return the numbers in one layer's state; 0 if the configuration does not tell."""
    net = parse_delta_net(text)
    if net.key_heads and net.value_heads and net.key_size:
        matrix = net.value_heads * net.key_size * net.value_size
        return matrix + net.window * (2 * net.key_heads * net.key_size + net.value_heads * net.value_size)
    mamba = parse_mamba(text)
    inner = mamba.heads * mamba.head_size
    if inner and mamba.state:  # Mamba 2
        return inner * mamba.state + mamba.window * (inner + 2 * mamba.groups * mamba.state)
    return mamba.expand * read_size(text, "hidden_size") * (mamba.state + mamba.window)
