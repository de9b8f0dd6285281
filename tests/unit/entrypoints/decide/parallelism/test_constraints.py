"""Which numbers of ranks can share a model, by its heads, its states and what a platform's kernels support."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.records import Value
from entrypoints.decide.parallelism.constraints import (
    check_experts,
    find_tensor_obstacle,
    impossible_size,
    list_tensor_sizes,
)
from entrypoints.decide.parallelism.fit import fit_model
from entrypoints.decide.parallelism.multimodal import choose_whole_towers, has_whole_towers
from entrypoints.decide.parallelism.rules import Rules
from entrypoints.model.config import parse_config
from entrypoints.model.geometry import Geometry, parse_geometry
from entrypoints.model.read import parse_model
from entrypoints.model.weights import Weights
from entrypoints.request.flags import TENSOR
from tests.support.fit_hosts import GIB, LLAMA_8B, LLAMA_70B, host, model, said
from tests.support.planned import configurations, models

RULES = Rules(usable=0.9, reserved=0, activations=0)


def config_of(name: str) -> dict[str, Any]:
    return dict(configurations()[name]["config"])


def geometry_of(name: str) -> Geometry:
    geometry, why = parse_geometry(parse_config(config_of(name)))
    assert geometry, why
    return geometry


@pytest.mark.parametrize(
    ("name", "heads", "matrix"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 16, 32 * 128 * 128),
        ("ai21labs/Jamba-v0.1", 0, 0),
        ("deepseek-ai/DeepSeek-R1", 0, 0),
    ],
)
def test_a_configuration_tells_the_heads_of_layers_with_a_state(name: str, heads: int, matrix: int) -> None:
    geometry = geometry_of(name)

    assert (geometry.state_heads, geometry.state_matrix, geometry.sparse) == (heads, matrix, False)


@pytest.mark.parametrize(
    ("keys", "heads"),
    [
        ({"mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1}, 24),
        ({"mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 2}, 2),
    ],
)
def test_groups_of_a_mamba_layer_are_divided_unless_there_is_one(keys: dict[str, int], heads: int) -> None:
    plain = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}
    listed = {"layer_types": ["mamba", "attention", "mamba", "attention"]}
    geometry, why = parse_geometry(parse_config({**plain, **listed, **keys}))

    assert geometry, why
    assert geometry.state_heads == heads


@pytest.mark.parametrize(
    ("name", "keys", "possible"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", {}, (1, 2, 4, 8)),
        ("deepseek-ai/DeepSeek-V4-Flash", {"o_groups": 4}, (1, 2, 4)),
        ("deepseek-ai/DeepSeek-V4-Flash", {"o_groups": 6}, (1, 2)),
        ("deepseek-ai/DeepSeek-V4-Pro", {"quantization_config": None}, (1, 2, 4, 8, 16)),
        ("deepseek-ai/DeepSeek-V4-Pro", {}, (1, 2, 4, 8)),  # vLLM issue 42384: 16 ranks cut a shared expert's block
        ("deepseek-ai/DeepSeek-V2-Lite", {"group_norm_size": 4}, (1, 2, 4)),
        ("MiniMaxAI/MiniMax-M3", {"sparse_attention_config": {"sparse_num_index_heads": 3}}, (1,)),
        ("XiaomiMiMo/MiMo-V2-Flash", {"swa_num_attention_heads": 48, "quantization_config": None}, (1, 2, 4, 8, 16)),
        ("XiaomiMiMo/MiMo-V2-Flash", {"swa_num_key_value_heads": 6, "quantization_config": None}, (1, 2)),
        ("Qwen/Qwen3-30B-A3B", {"num_attention_heads_per_layer": [32, 24]}, (1, 2, 4, 8)),
        (
            "Qwen/Qwen3-30B-A3B",
            {"attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 12}},
            (1, 2, 4),
        ),
        ("Qwen/Qwen3-30B-A3B", {"num_global_key_value_heads": 3}, (1,)),
        ("Qwen/Qwen3-30B-A3B", {"shared_expert_intermediate_size": 264}, (1, 2, 4, 8)),
    ],
)
def test_ranks_divide_every_number_that_vllms_classes_divide(
    name: str, keys: dict[str, Any], possible: tuple[int, ...]
) -> None:
    known = parse_model(name, parse_config({**config_of(name), **keys}), name)

    assert list_tensor_sizes(known, RULES, 32, experts=True) == possible
    assert [
        size
        for size in list_tensor_sizes(known, RULES._replace(own_classes=True), 32, experts=True)
        if size > possible[-1]
    ]


@pytest.mark.parametrize(
    ("name", "tensor", "flags", "possible"),
    [
        ("moonshotai/Kimi-K3", 8, (), True),  # 12 heads; vLLM gives each rank the whole tower
        ("Qwen/Qwen2.5-VL-72B-Instruct", 32, (), False),
        ("Qwen/Qwen2.5-VL-72B-Instruct", 32, ("--mm-encoder-tp-mode", "data"), True),
        ("Qwen/Qwen2.5-VL-72B-Instruct", 32, ("--mm-encoder-tp-mode", "weights"), False),
        ("Qwen/Qwen2.5-VL-72B-Instruct", 32, ("--language-model-only",), True),
    ],
)
def test_ranks_share_the_heads_of_a_tower_unless_each_has_all_of_it(
    name: str, tensor: int, flags: tuple[str, ...], possible: bool
) -> None:
    known = parse_model(name, parse_config(config_of(name)), name)
    rules = RULES._replace(has_whole_towers=has_whole_towers(said(*flags)))

    assert ("heads of the image tower" not in find_tensor_obstacle(known, rules, tensor, experts=True)) == possible


@pytest.mark.parametrize(
    ("accelerator", "name", "flags", "mode"),
    [
        ("cuda", "moonshotai/Kimi-K2.5", (), "data"),
        ("ascend", "moonshotai/Kimi-K2.6", (), "data"),
        ("rocm", "Qwen/Qwen3-VL-235B-A22B-Instruct", (), "data"),
        ("ascend", "Qwen/Qwen3-VL-235B-A22B-Instruct", (), None),  # its tutorial sets no mode
        ("cuda", "moonshotai/Kimi-K2.5", ("--mm-encoder-tp-mode", "weights"), None),
        ("cuda", "moonshotai/Kimi-K2.5", ("--language-model-only",), None),
    ],
)
def test_each_rank_has_the_whole_tower_where_a_vendor_publishes_it(
    accelerator: str, name: str, flags: tuple[str, ...], mode: str | None
) -> None:
    known = parse_model(name, parse_config(config_of(name)), name)
    values = choose_whole_towers(accelerator, known, said(*flags), {TENSOR: Value("8", "")})

    assert (values["--mm-encoder-tp-mode"].value if values else None) == mode


@pytest.mark.parametrize(
    ("size", "mode"), [("2", {}), ("4", {"--mm-encoder-tp-mode"}), ("8", {"--mm-encoder-tp-mode"})]
)
def test_few_ranks_keep_the_mode_of_vllm(size: str, mode: set[str]) -> None:
    known = parse_model("moonshotai/Kimi-K2.5", parse_config(config_of("moonshotai/Kimi-K2.5")), "")

    assert choose_whole_towers("cuda", known, said(), {TENSOR: Value(size, "")}).keys() == set(mode)
    assert choose_whole_towers("cuda", known, said("-tp", size), {}).keys() == set(mode)


@pytest.mark.parametrize(("tensor", "reason"), [(4, ""), (8, "of the image tower, 3420, is not divisible by 8")])
def test_ranks_share_the_feed_forward_part_of_a_tower(tensor: int, reason: str) -> None:
    three_b = {"num_attention_heads": 16, "num_key_value_heads": 2, "hidden_size": 2048, "intermediate_size": 11008}
    name = "Qwen/Qwen2.5-VL-7B-Instruct"
    known = parse_model(name, parse_config({**config_of(name), **three_b}), name)

    assert find_tensor_obstacle(known, RULES, tensor).endswith(reason)
    assert bool(find_tensor_obstacle(known, RULES, tensor)) == bool(reason)
    assert not find_tensor_obstacle(known._replace(shortened="its tower"), RULES, tensor)


def test_a_hint_names_no_size_that_another_number_of_the_model_forbids() -> None:
    name = "deepseek-ai/DeepSeek-V4-Flash"
    error = impossible_size(parse_model(name, parse_config(config_of(name)), name), RULES, 12)

    assert error
    assert error.hint == "possible: -tp 8"


def test_an_indexer_makes_attention_sparse() -> None:
    dense = config_of("deepseek-ai/DeepSeek-R1")
    indexed_geometry, _why = parse_geometry(parse_config({**dense, "index_topk": 2048}))
    left_out, _why = parse_geometry(parse_config({**dense, "model_type": "glm_moe_dsa"}))

    assert indexed_geometry
    assert left_out
    assert (indexed_geometry.sparse, left_out.sparse) == (True, True)


def test_ranks_divide_the_heads_of_layers_with_a_state_too() -> None:
    hybrid = model(LLAMA_8B._replace(state_heads=4))

    assert list_tensor_sizes(hybrid, RULES, 8) == (1, 2, 4)
    assert (
        find_tensor_obstacle(hybrid, RULES, 8) == "4 heads or groups of the layers with a state are not divisible by 8"
    )


def test_a_size_of_the_users_is_refused_with_the_nearest_or_with_none() -> None:
    error = impossible_size(model(LLAMA_8B), RULES, 12)

    assert error
    assert (error.code, error.hint) == (USAGE, "possible: -tp 8 or -tp 16")
    assert impossible_size(model(LLAMA_8B), RULES, 4) is None


def test_one_kv_head_is_not_told_as_an_obstacle() -> None:
    assert find_tensor_obstacle(model(LLAMA_8B._replace(heads=64, kv_heads=1)), RULES, 12) == (
        "64 heads are not divisible by 12"
    )


def test_kernels_of_latent_attention_name_the_heads_of_a_rank() -> None:
    latent = model(LLAMA_8B._replace(heads=128, kv_heads=128, latent=576))
    few = RULES._replace(latent_heads=(32, 64, 128))

    assert list_tensor_sizes(latent, few, 16) == (1, 2, 4)
    assert "latent attention supports 32, 64, 128 heads per rank" in find_tensor_obstacle(latent, few, 8)
    assert list_tensor_sizes(latent, RULES, 16) == (1, 2, 4, 8, 16)


def test_ranks_beyond_a_few_only_repeat_the_cache_of_latent_attention() -> None:
    latent, few = LLAMA_8B._replace(heads=64, kv_heads=64, latent=576), RULES._replace(latent_ranks=4)

    assert list_tensor_sizes(model(latent), few, 16) == (1, 2, 4)
    assert list_tensor_sizes(model(latent._replace(sparse=True)), few, 16) == (1, 2, 4, 8, 16)


def test_heads_of_a_size_need_several_query_heads_for_each_kv_head() -> None:
    wide, narrow = LLAMA_8B._replace(heads=16, kv_heads=2, head_size=256), RULES._replace(grouped_head_sizes=(256,))

    assert list_tensor_sizes(model(wide), narrow, 16) == (1, 2, 4, 8)
    assert list_tensor_sizes(model(wide), RULES, 16) == (1, 2, 4, 8, 16)
    assert list_tensor_sizes(model(wide._replace(kv_heads=16)), narrow, 16) == (1, 2, 4, 8, 16)


def test_a_state_fills_whole_blocks_of_keys() -> None:
    hybrid = LLAMA_8B._replace(heads=16, kv_heads=2, head_size=256, state_heads=16, state_matrix=16 * 128 * 128)

    assert list_tensor_sizes(model(hybrid), RULES._replace(state_block=128), 16) == (1, 2, 4, 8, 16)
    assert list_tensor_sizes(model(hybrid), RULES._replace(state_block=1024), 16) == (1, 2)


@pytest.mark.parametrize(("method", "possible"), [("bitsandbytes", (1,)), ("awq", (1, 2, 4, 8)), ("", (1, 2, 4, 8))])
def test_weights_that_bitsandbytes_has_quantised_are_not_cut(method: str, possible: tuple[int, ...]) -> None:
    large = model(LLAMA_70B, quantization=method)
    chosen = fit_model(host(8, 24), large._replace(weights=Weights(40 * GIB, 0, 40 * GIB)), said(), RULES)

    assert list_tensor_sizes(large, RULES, 8) == possible
    assert list_tensor_sizes(large._replace(geometry=None), RULES, 8) == possible
    assert (chosen.tensor > 1, chosen.pipeline > 1) == (method != "bitsandbytes", method == "bitsandbytes")


def test_a_model_that_bitsandbytes_quantises_while_loading_is_cut() -> None:
    assert fit_model(host(8, 80), model(LLAMA_70B, 70.6), said("--quantization", "bitsandbytes"), RULES).tensor > 1


@pytest.mark.parametrize(
    ("geometry", "context", "possible"),
    [
        (LLAMA_8B._replace(latent=576), 4, (4, 8)),
        (LLAMA_8B, 2, (16,)),
        (LLAMA_8B._replace(kv_heads=2), 4, (8, 16)),
        (LLAMA_8B._replace(heads=24, kv_heads=8), 2, ()),
        (LLAMA_8B._replace(kv_heads=1), 1, (1, 2, 4, 8, 16)),
    ],
)
def test_decode_context_parallelism_needs_ranks_that_would_repeat_the_cache(
    geometry: Geometry, context: int, possible: tuple[int, ...]
) -> None:
    most = 8 if geometry.latent else 16
    assert list_tensor_sizes(model(geometry), RULES._replace(context=context), most) == possible


def test_decode_context_parallelism_divides_the_cache_of_latent_attention() -> None:
    latent = model(LLAMA_8B._replace(kv_heads=32, latent=576))
    counts = {
        context: fit_model(host(8), latent, said("-tp", "8", *(("-dcp", context) if context else ())), RULES).kv_tokens
        for context in ("", "2", "8")
    }
    one, two, eight = (counts[context] or 0 for context in ("", "2", "8"))

    assert one
    assert (round(two / one, 1), round(eight / one, 1)) == (2.0, 8.0)


def test_decode_context_parallelism_leaves_sliding_layers_and_drafting_ones_whole() -> None:
    half = LLAMA_8B._replace(sliding_layers=16, window=1024)
    drafting = LLAMA_8B._replace(draft=LLAMA_8B._replace(layers=1))

    assert half.kv_bytes(8192, 2, 1) - half.kv_bytes(8192, 2, 1, spread=2) == 16 * 4096 * half.kv_elements(1) * 2
    assert drafting.draft_bytes(8192, 2, 1) == drafting.kv_bytes(8192, 2, 1, spread=2) - LLAMA_8B.kv_bytes(4096, 2, 1)


def test_decode_context_parallelism_that_no_number_of_devices_allows_is_refused() -> None:
    with pytest.raises(EntrypointError, match="needs 2 copies of 8 KV heads, 8 ranks have 1") as error:
        fit_model(host(8), model(), said("-dcp", "2"), RULES)

    assert (error.value.code, error.value.hint) == (USAGE, "lower --decode-context-parallel-size, or leave it out")


@pytest.mark.parametrize(
    ("name", "tensor", "why"),
    [  # as vLLM 0.32's own classes say: tests/models/oracle.json
        ("deepseek-ai/DeepSeek-V3", 8, ""),
        ("deepseek-ai/DeepSeek-V3", 32, "down_proj of 18432 over 32 ranks cuts the 128"),
        ("moonshotai/Kimi-K2-Instruct", 32, "over 32 ranks cuts the 128"),
        ("Qwen/Qwen3-32B-FP8", 32, "over 32 ranks cuts the 128"),
        ("Qwen/Qwen3-8B", 32, ""),
        ("openai/gpt-oss-120b", 8, ""),
        ("openai/gpt-oss-120b", 16, "8 KV heads are not divisible by 16, and GptOssForCausalLM repeats none"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 32, "16 heads of the image tower are not divisible by 32"),
        ("Qwen/Qwen2-Audio-7B-Instruct", 32, ""),
    ],
)
def test_limits_of_vllms_classes_are_those_of_the_plan(name: str, tensor: int, why: str) -> None:
    reason = find_tensor_obstacle(models()[name], RULES._replace(expert="needed"), tensor, experts=True)

    assert why in reason
    assert bool(reason) == bool(why)


def test_a_matrix_that_is_not_quantised_may_be_cut() -> None:
    config = config_of("deepseek-ai/DeepSeek-V3")
    quantised = config["quantization_config"]
    excluded = ["model.layers.0.mlp.down_proj", "model.layers.5.mlp.shared_experts.down_proj"]
    plain = {**config, "quantization_config": {**quantised, "modules_to_not_convert": excluded}}

    assert find_tensor_obstacle(parse_model("m", parse_config(config), "m"), RULES, 32, experts=True) != ""
    assert find_tensor_obstacle(parse_model("m", parse_config(plain), "m"), RULES, 32, experts=True) == ""


def test_an_embedding_is_padded_before_it_is_divided() -> None:
    facts = model(LLAMA_8B._replace(heads=24, kv_heads=24, vocabulary=1000, intermediate=12288))

    assert "a vocabulary of 1024 (padded) is not divisible by 3" in find_tensor_obstacle(facts, RULES, 3)
    assert find_tensor_obstacle(facts, RULES._replace(own_classes=True), 3) == ""


def test_expert_parallelism_needs_experts() -> None:
    with pytest.raises(EntrypointError, match="m has no experts"):
        check_experts(parse_model("m", parse_config(config_of("Qwen/Qwen3-8B")), "m"), experts=True)
    check_experts(parse_model("m", parse_config(config_of("Qwen/Qwen3-30B-A3B")), "m"), experts=True)


def test_minimaxs_marks_of_attention_are_no_state() -> None:
    config = config_of("MiniMaxAI/MiniMax-M2.7")

    assert geometry_of("MiniMaxAI/MiniMax-M2.7").cacheless == 0
    geometry, why = parse_geometry(parse_config({**config, "attn_type_list": [0, 1]}))
    assert geometry is None
    assert "attn_type_list" in why
