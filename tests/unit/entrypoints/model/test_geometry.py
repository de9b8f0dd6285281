"""Layers, heads and KV cache from the configurations of real model families."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drydock.run.standin_run import CONFIG
from entrypoints.model.config import parse_config
from entrypoints.model.geometry import Geometry, Rope, parse_geometry
from entrypoints.model.keys import LAYERS
from entrypoints.model.parameters import estimate_weights
from tests.support.planned import configurations

LLAMA = {**CONFIG, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_key_value_heads": 32,
}
GEMMA = {
    "model_type": "gemma3",
    "text_config": {
        **LLAMA,
        "head_dim": 256,
        "sliding_window": 1024,
        "layer_types": ["sliding_attention"] * 26 + ["full_attention"] * 6,
    },
}


def geometry(config: dict[str, Any]) -> Geometry:
    model_geometry, unknown = parse_geometry(parse_config(config))
    assert model_geometry, unknown
    return model_geometry


def test_grouped_heads_share_keys_and_values() -> None:
    assert geometry(LLAMA).kv_bytes(1, 2, 1) == 2 * 32 * 8 * 128 * 2
    assert geometry(LLAMA).kv_bytes(1, 2, 4) == 2 * 32 * 2 * 128 * 2


def test_more_ranks_than_kv_heads_keep_one_head_each() -> None:
    assert geometry(LLAMA).kv_elements(16) == 2 * 128


def test_without_kv_heads_there_are_as_many_as_heads() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}

    assert geometry(config).kv_heads == 32


def test_gpt2_and_falcon_use_their_own_keys() -> None:
    gpt2 = geometry({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024})
    falcon = geometry({"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True})

    assert (gpt2.layers, gpt2.kv_heads, gpt2.head_size, gpt2.max_length) == (12, 12, 64, 1024)
    assert (falcon.kv_heads, falcon.head_size, falcon.max_length) == (1, 64, None)


def test_params_of_mistral_are_parsed() -> None:
    mistral = geometry({"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "max_seq_len": 32768})

    assert (mistral.kv_heads, mistral.head_size, mistral.max_length) == (8, 128, 32768)


def test_latent_attention_keeps_one_vector_that_ranks_do_not_split() -> None:
    deepseek = geometry(DEEPSEEK)

    assert deepseek.kv_bytes(1, 2, 1) == deepseek.kv_bytes(1, 2, 8) == 32 * (512 + 64) * 2


COUNTED = [
    name
    for name, body in configurations().items()
    if any(key in parse_config(body["config"]).text for key in LAYERS)
    and parse_geometry(parse_config(body["config"]))[0]
]
"""Known models whose configuration says how many layers they have."""


@pytest.mark.parametrize("name", COUNTED)
def test_lists_of_more_layers_than_the_model_has_are_read_to_its_last(name: str) -> None:
    config = configurations()[name]["config"]
    text = dict(parse_config(config).text)
    half = {**text, **{key: text[key] // 2 for key in LAYERS if key in text}}
    whole_model, half_model = geometry(text), geometry(half)
    whole_bytes, half_bytes = (model.kv_bytes(8192, 2, 1) for model in (whole_model, half_model))

    assert half_model.layers == whole_model.layers // 2
    assert 0.35 < half_bytes / whole_bytes < 0.65
    assert estimate_weights(parse_config(half), half_model).elements <= (
        estimate_weights(parse_config(text), whole_model).elements
    )


def test_sliding_layers_of_a_nested_model_stop_growing() -> None:
    gemma = geometry(GEMMA)
    token = 2 * 8 * 256 * 2

    assert gemma.kv_bytes(100, 2, 1) == (6 + 30) * 100 * token  # 26 in groups of 6
    assert gemma.kv_bytes(8192, 2, 1) == (6 * 8192 + 30 * 1024) * token


@pytest.mark.parametrize(
    ("layers", "sliding", "padded_layers"),
    [
        (62, 52, (10, 60)),  # gemma-3-27b: vLLM 0.19 has 36,560 tokens in 19.53 GiB, those of 70 layers
        (48, 40, (8, 40)),
        (46, 23, (23, 23)),
        (25, 12, (13, 13)),  # gpt-oss-20b with a draft of one layer
        (32, 0, (32, 0)),
        (32, 32, (0, 32)),
    ],
)
def test_layers_of_two_kinds_are_padded_to_groups_of_one_size(
    layers: int, sliding: int, padded_layers: tuple[int, int]
) -> None:
    body = {**GEMMA, "text_config": {**GEMMA["text_config"], "num_hidden_layers": layers}}
    gemma = geometry(body)._replace(layers=layers, sliding_layers=sliding, window=10)
    token = gemma.kv_elements(1) * 2

    assert gemma.kv_bytes(100, 2, 1) == (padded_layers[0] * 100 + padded_layers[1] * 10) * token


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({}, 2048),
        ({"rope_type": "linear", "factor": 4.0}, 8192),
        ({"rope_type": "dynamic", "factor": 4.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 2048),
    ],
)
def test_the_table_of_rotations_is_as_long_as_in_vllm(rope: Any, positions: int) -> None:
    llama = geometry({**LLAMA, "max_position_embeddings": 2048, "rope_scaling": rope or None})

    assert llama.rope.table_length() == positions
    assert llama.rotary_size == llama.head_size


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({}, 2048),
        ({"rope_type": "linear", "factor": 4.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0}, 2048),
        ({"rope_type": "telechat3-yarn", "factor": 4.0}, 2048),
        ({"rope_type": "default", "factor": 4.0}, 8192),
        ({"rope_type": "llama3", "factor": 8.0}, 2048),
        ({"type": "dynamic", "factor": 2}, 4096),
        ({"rope_type": "linear", "factor": None}, 2048),
    ],
)
def test_rotary_scaling_lengthens_as_in_vllm(rope: Any, length: int) -> None:
    assert geometry({**LLAMA, "rope_scaling": rope}).max_length == length


@pytest.mark.parametrize("kind", ["longrope", "su"])
def test_longrope_starts_from_the_original_length(kind: str) -> None:
    rope = {"type": kind}

    assert geometry({**LLAMA, "original_max_position_embeddings": 512, "rope_scaling": rope}).max_length == 512


@pytest.mark.parametrize(
    ("rope", "version", "length"),
    [
        (Rope(32768, "telechat3-yarn", 4.0, 8192), (0, 32), 32768),
        (Rope(32768, "telechat3-yarn", 4.0, 8192), (0, 29), 131072),
        (Rope(2048, "deepseek_yarn", 4.0, 512), (0, 30), 2048),
        (Rope(2048, "deepseek_yarn", 4.0, 512), (0, 29), 8192),
        (Rope(40960, "yarn", 4.0, 32768), (0, 30), 40960),
        (Rope(40960, "yarn", 4.0, 32768), (0, 29), 131072),
        (Rope(131072, "longrope", 1.0, 4096), (0, 16), 4096),
        (Rope(131072, "su", 1.0, 4096), (0, 11), 131072),
    ],
)
def test_the_version_of_vllm_decides_whether_the_factor_counts(
    rope: Rope, version: tuple[int, int], length: int
) -> None:
    assert rope.length(version) == length


@pytest.mark.parametrize(
    "extra",
    [{"mamba_d_state": 16}, {"linear_num_key_heads": 4}, {"layer_types": ["full_attention", "linear_attention"]}],
)
def test_the_reason_names_the_key_of_state_layers(extra: dict[str, Any]) -> None:
    model_geometry, unknown = parse_geometry(parse_config({**LLAMA, **extra}))

    assert model_geometry is None
    assert next(iter(extra)) in unknown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads: found '0'"),
        ({"num_key_value_heads": [1, 2]}, "num_key_value_heads: found"),
        ({"hidden_size": "big"}, "hidden_size: found 'big'"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"rope_scaling": [1]}, r"rope_scaling: found '\[1\]', expected an object"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "factor of rope_scaling: found '4'"),
        ({"attn_config": 8}, "attn_config: found '8', expected an object"),
    ],
)
def test_what_is_missing_or_wrong_is_named_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_geometry(parse_config({**LLAMA, **change}))


def test_tensor_parallelism_needs_heads_that_divide() -> None:
    assert [count for count in range(1, 9) if geometry(LLAMA).divides(count)] == [1, 2, 4, 8]
    assert not geometry(LLAMA).divides(6)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [*LLAMA, "text_config", "layer_types", "rope_scaling", "sliding_window", "head_dim", "attn_config"]
)


@given(st.dictionaries(KEYS, JSON, max_size=8))
def test_no_configuration_gives_a_traceback(change: dict[str, Any]) -> None:
    config = json.loads(json.dumps({**LLAMA, **change}))
    try:
        model_geometry, unknown = parse_geometry(parse_config(config))
    except ValueError as problem:
        model_geometry, unknown = None, str(problem)

    assert model_geometry or unknown


LATENT = {**CONFIG, "num_hidden_layers": 8, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048}


class TestSparseAttention:
    """What indexers and compressing layers cache."""

    def test_an_indexer_keeps_a_key_of_eight_bits_and_its_scale_for_each_token_on_every_rank(self) -> None:
        plain = geometry(LATENT)
        indexed = geometry({**LATENT, "index_head_dim": 128})

        assert indexed.kv_bytes(1000, 2, 8) - plain.kv_bytes(1000, 2, 8) == 8 * 132 * 1000

    def test_layers_that_share_an_indexer_keep_no_keys(self) -> None:
        kinds = ["full", "shared", "shared", "shared"] * 2

        assert geometry({**LATENT, "index_head_dim": 128, "indexer_types": kinds}).index_bytes == 2 * 132
        assert geometry({**LATENT, "index_head_dim": 128, "index_topk_freq": 4}).index_bytes == 3 * 132

    def test_a_layer_type_of_sparse_attention_keeps_a_cache_and_no_state(self) -> None:
        kinds = ["deepseek_sparse_attention"] * 8

        assert geometry({**LATENT, "layer_types": kinds}) == geometry(LATENT)

    def test_compressing_layers_keep_one_entry_for_many_tokens_beside_their_window(self) -> None:
        ratios = [0, 0, 4, 128, 4, 128, 4, 128, 0]
        config = {
            **CONFIG, "num_hidden_layers": 8, "num_key_value_heads": 1, "head_dim": 512, "sliding_window": 128,
            "compress_ratios": ratios, "index_head_dim": 128,
        }  # fmt: skip
        model_geometry = geometry(config)

        entries = 3 * 1024 // 4 + 3 * 1024 // 128 + 8 * 128
        assert model_geometry.kv_bytes(1024, 2, 8) == entries * 512 * 2 + 3 * 132 // 4 * 1024


def test_nested_sizes_that_a_file_leaves_out_are_those_of_its_family() -> None:
    config = parse_config({"model_type": "qwen2_audio", "text_config": {"model_type": "qwen2", "vocab_size": 156032}})
    model_geometry, _ = parse_geometry(config)

    assert model_geometry
    assert (model_geometry.layers, model_geometry.heads, model_geometry.hidden, model_geometry.vocabulary) == (
        32,
        32,
        4096,
        156032,
    )
    assert "num_attention_heads=32" in config.filled
    assert not any(name.startswith("vocab_size") for name in config.filled)
