"""A recipe's YAML becomes facts; what a recipe may not say is left out with a reason, or the file is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from drydock.core.errors import InputError
from drydock.lock.recipes.parse_recipe import LARGEST, parse_recipe, parse_recipe_words

RECIPE = """
meta:
  date_updated: 2026-08-03
  hardware: {h200: verified, mi355x: verified, mi300x: unsupported}
model:
  model_id: abacus/Abacus-9
  min_vllm_version: 0.24.0
  base_args: [--block-size, '128', --trust-remote-code, --gpu-memory-utilization, '0.95']
  base_env: {VLLM_USE_DEEP_GEMM: '1', HF_TOKEN: secret}
features:
  tool_calling:
    args: [--tool-call-parser, abacus, --enable-auto-tool-choice, --chat-template, examples/abacus.jinja]
  reasoning:
    args: [--reasoning-parser, abacus]
    hardware_overrides: {amd: {args: [--reasoning-parser, abacus_amd]}}
  spec_decoding:
    default_mode: eagle3
    modes:
      mtp: {variants: [fp8], args: [--speculative-config, '{"method": "mtp"}']}
      eagle3:
        hardware: {hopper: unsupported}
        args: [--speculative-config, '{"method": "eagle3", "model": "abacus/Draft"}']
opt_in_features: [spec_decoding]
variants:
  default: {precision: bf16, vram_minimum_gb: 100}
  fp8:
    model_id: abacus/Abacus-9-FP8
    precision: fp8
    min_vllm_version: '0.25'
    tp: {h200: 2, default: 4}
    supported_hardware: [h200, mi355x]
    extra_args: [--no-enable-prefix-caching, --attention_config.indexer_kv_dtype=fp8]
    hardware_overrides:
      hopper: {extra_args: [--max-num-batched-tokens, '8192']}
      mi355x: {extra_env: {VLLM_ROCM_USE_AITER: '1'}}
hardware_overrides:
  nvidia: {extra_args: [--async-scheduling]}
guide: |
  # Prose that nobody reads
"""


def parsed(text: str = RECIPE) -> dict[str, dict[str, Any]]:
    """Return what a recipe says."""
    return parse_recipe(text, "models/abacus/Abacus-9.yaml")


def test_each_checkpoint_has_the_facts_of_its_recipe() -> None:
    facts = parsed()["abacus/Abacus-9"]
    assert {key: facts[key] for key in ("recipe", "date", "least_vllm", "precision", "vram_gb", "needs_code")} == {
        "recipe": "abacus/Abacus-9",
        "date": "2026-08-03",
        "least_vllm": "0.24.0",
        "precision": "bf16",
        "vram_gb": 100,
        "needs_code": True,
    }
    assert (facts["verified"], facts["unsupported"]) == (["h200", "mi355x"], ["mi300x"])
    assert facts["flags"] == {"--block-size": "128"}
    assert facts["env"] == {"VLLM_USE_DEEP_GEMM": "1"}
    assert facts["on"] == {"nvidia": {"flags": {"--async-scheduling": True}}}
    assert "Prose" not in str(facts)


def test_the_strategy_for_one_machine_names_a_size_where_the_checkpoint_does_not() -> None:
    entries = parsed(f"{RECIPE}strategy_overrides: {{single_node_tp: {{tp: {{h200: 8}}}}, pd_cluster: {{tp: 1}}}}\n")
    assert entries["abacus/Abacus-9"]["tp"] == {"h200": 8}
    assert entries["abacus/Abacus-9-FP8"]["tp"] == {"h200": 2, "default": 4}


def test_a_variant_adds_to_its_recipe() -> None:
    facts = parsed()["abacus/Abacus-9-FP8"]
    assert facts["least_vllm"] == "0.25"
    assert (facts["tp"], facts["only_on"]) == ({"h200": 2, "default": 4}, ["h200", "mi355x"])
    assert facts["flags"] == {
        "--block-size": "128",
        "--enable-prefix-caching": False,
        "--attention-config.indexer_kv_dtype": "fp8",
    }


def test_a_generation_without_a_block_has_that_of_its_brand() -> None:
    on = parsed()["abacus/Abacus-9-FP8"]["on"]
    assert on["hopper"] == {"flags": {"--async-scheduling": True, "--max-num-batched-tokens": "8192"}}
    assert on["mi355x"] == {"env": {"VLLM_ROCM_USE_AITER": "1"}}, "a card of another brand has none of it"


def test_what_is_left_out_is_recorded_with_its_reason() -> None:
    assert parsed()["abacus/Abacus-9"]["left_out"] == {
        "--chat-template": "names a file",
        "--gpu-memory-utilization": "drydock decides lengths and memory",
        "HF_TOKEN": "names an address or a name",
    }


def test_features_are_on_or_named_and_each_mode_has_a_name() -> None:
    features = parsed()["abacus/Abacus-9"]["features"]
    assert features["reasoning"]["on"] == {"amd": {"flags": {"--reasoning-parser": "abacus_amd"}}}
    assert "named" not in features["tool_calling"]
    assert features["spec_decoding"] == features["spec_decoding.eagle3"]
    assert features["spec_decoding"]["draft"] == "abacus/Draft"
    assert features["spec_decoding"]["on"] == {"hopper": {}}, "not on this hardware"
    assert "spec_decoding.mtp" not in features, "a mode of another variant"
    assert "spec_decoding.mtp" in parsed()["abacus/Abacus-9-FP8"]["features"]


def test_a_recipe_may_say_that_its_reasoning_must_be_named() -> None:
    features = parsed(RECIPE.replace("[spec_decoding]", "[spec_decoding, reasoning]"))["abacus/Abacus-9"]["features"]
    assert features["reasoning"]["named"] is True


def test_recipes_of_omni_are_not_for_this_vllm() -> None:
    assert parsed(f"{RECIPE}\nomni: {{port: 8091}}\n") == {}


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--max-model-len 4096"], {"--max-model-len": "4096"}),
        (["--limit-mm-per-prompt.video", "0"], {"--limit-mm-per-prompt.video": "0"}),
        (["-cc.mode=3"], {"--compilation-config.mode": "3"}),
        (["--tokenizer_mode", "mistral", "--enforce-eager"], {"--tokenizer-mode": "mistral", "--enforce-eager": True}),
        (["--x", "-1"], {"--x": "-1"}),
        (["value"], {}),
    ],
)
def test_arguments_are_read_as_vllm_reads_them(words: list[str], flags: dict[str, Any]) -> None:
    assert dict(parse_recipe_words(words)) == flags


HOSTILE = {
    "--tool-parser-plugin /tmp/x.py": "runs code",
    "--chat-template https://example.org/x": "names a file",
    "--host 0.0.0.0": "names an address or a name",
    "--api-key k": "names an address or a name",
    "--model other/Model": "names another model",
    "--tensor-parallel-size 8": "drydock decides the parallelism",
    "--generation-config /etc": "names a file",
    "--dtype $(id)": "the value has another form than a recipe may use",
    "--block-size 1;2": "the value has another form than a recipe may use",
    "--quantization ../x": "the value has another form than a recipe may use",
    "--speculative-config.model x/y": "names another model",
    '--compilation-config {"inductor_passes":{"a":"os.system"}}': "the value has another form than a recipe may use",
    '--compilation-config {"backend":"os.system"}': "the value has another form than a recipe may use",
    "--compilation-config [1]": "the value has another form than a recipe may use",
    "--brand-new-flag 1": "a recipe may not set it",
}


@pytest.mark.parametrize(("words", "reason"), HOSTILE.items())
def test_what_a_recipe_may_not_set_is_left_out(words: str, reason: str) -> None:
    flag, _, value = words.partition(" ")
    text = f"model:\n  model_id: a/b\n  base_args: [{flag}, '{value}']\n"
    facts = parsed(text)["a/b"]
    assert "flags" not in facts
    assert facts["left_out"] == {flag: reason}


VARIABLES = (
    "LD_PRELOAD",
    "PYTHONPATH",
    "VLLM_PLUGINS",
    "VLLM_USE_MODELSCOPE",
    "HF_ENDPOINT",
    "NCCL_SOCKET_IFNAME",
    "X",
)


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_are_those_of_the_list(name: str) -> None:
    facts = parsed(f"model:\n  model_id: a/b\n  base_env: {{{name}: x, VLLM_USE_DEEP_GEMM: '$HOME'}}\n")["a/b"]
    assert "env" not in facts
    assert facts["left_out"].keys() == {name, "VLLM_USE_DEEP_GEMM"}


def test_a_draft_model_needs_a_feature_that_is_named() -> None:
    spoken = '--speculative-config, \'{"model": "x/y"}\''
    facts = parsed(f"model:\n  model_id: a/b\nfeatures:\n  reasoning: {{args: [{spoken}]}}\n")["a/b"]
    assert "features" not in facts
    assert facts["left_out"] == {"--speculative-config": "names another model"}


BOMB = "model: &a\n  model_id: a/b\nx: [*a, *a]\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "anchors and aliases are not allowed"),
        ("model: !!python/object/apply:os.system [id]\n", "tags are not allowed"),
        ("model: {model_id: a/b}\nx: " + "[" * 60 + "]" * 60, "nested deeper than 32"),
        ("model: {model_id: a/b}\nmodel: {model_id: c/d}\n", "duplicate key 'model'"),
        (f"model: {{model_id: a/b}}\nx: {'y' * (10 << 20)}\n", f"larger than {LARGEST} bytes"),
        ("- a\n", "expected a recipe"),
        ("model: {model_id: ../../etc}\n", "model.model_id: expected ORG/NAME"),
        ("{", "expected"),
        ("", "expected a recipe"),
    ],
)
def test_a_file_that_is_no_recipe_is_an_error_of_one_line(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=re.escape(problem)) as caught:
        parsed(text)
    assert len(caught.value.problems) == 1
    assert "\n" not in caught.value.problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "model: {model_id: a/b, base_args: [1, [2], {a: b}]}",
        "model: {model_id: a/b, base_args: {a: b}, base_env: [a]}",
        "model: {model_id: a/b, base_args: [" + ", ".join(["--enforce-eager"] * 1000) + "]}",
        "model: {model_id: a/b, min_vllm_version: ''}\nvariants: {default: x, other: []}\nfeatures: {a: b}",
        "model: {model_id: a/b}\nvariants: {" + ", ".join(f"v{number}: {{}}" for number in range(999)) + "}",
        "model: {model_id: a/b, min_vllm_version: '" + "9" * 5000 + "'}",
        "model: {model_id: a/b}\nhardware_overrides: {'../x': {extra_args: [--enforce-eager]}, b: c}",
    ],
)
def test_odd_values_are_no_facts(text: str) -> None:
    assert parsed(text)["a/b"] == {"recipe": "a/b"}
