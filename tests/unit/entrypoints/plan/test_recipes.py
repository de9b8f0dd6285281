"""A published recipe in a plan: what it sets, what is stronger, and what of it is left out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import ServePlan
from entrypoints.model.read import ModelFacts
from entrypoints.plan.plan import make_serve_plan
from entrypoints.plan.recipe_cards import CARDS, GENERATION_OF, find_card
from entrypoints.plan.recipe_file import RecipeFacts, read_facts
from entrypoints.plan.recipes import choose_recipe
from entrypoints.request.intents import NONE, Intents
from entrypoints.request.recipes import RecipeChoice
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.request.vllm_lists import VllmLists
from tests.support.hosts import expect
from tests.support.hosts.host_models import LLAMA

MODEL = LLAMA._replace(name="abacus/Abacus-9", local=False)
FACTS: dict[str, Any] = {
    "recipe": "abacus/Abacus-9",
    "date": "2026-08-03",
    "verified": ["h100", "mi355x"],
    "flags": {"--block-size": "32", "--enable-prefix-caching": False},
    "env": {"VLLM_USE_DEEP_GEMM": "1"},
    "on": {
        "hopper": {"flags": {"--async-scheduling": True}},
        "h100": {"flags": {"--max-num-batched-tokens": "8192"}},
        "amd": {"flags": {"--attention-backend": "TRITON_ATTN"}, "env": {"VLLM_ROCM_USE_AITER": "0"}},
    },
    "features": {
        "tool_calling": {"flags": {"--tool-call-parser": "hermes", "--enable-auto-tool-choice": True}},
        "reasoning": {"flags": {"--reasoning-parser": "qwen3"}, "on": {"amd": {"flags": {"--reasoning-parser": "x"}}}},
        "text_only": {"named": True, "flags": {"--language-model-only": True}},
        "spec": {"named": True, "flags": {"--speculative-config": '{"method": "eagle3", "model": "abacus/Draft"}'}},
    },
}


def planned(  # noqa: PLR0913 - all but the first two are rare
    words: tuple[str, ...] = (),
    facts: Mapping[str, Any] = FACTS,
    host: str = "cuda-h100-8x",
    *,
    features: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    lists: Mapping[str, Any] | None = None,
    profile: Mapping[str, Any] | None = None,
    model: ModelFacts = MODEL,
    intents: Intents = NONE,
) -> ServePlan:
    """Plan with a recipe."""
    profile = expect.profile_of(host) | dict(profile or {})
    read = expect.read(host, profile)
    user_flags = parse_user_flags((model.name, *words), env or {}, (), intents)._replace(vllm=VllmLists(lists or {}))
    published = RecipeFacts("abacus/Abacus-9", facts)
    recipe = choose_recipe(profile, read, model, user_flags, published, RecipeChoice(features=features))
    return make_serve_plan(profile, read, model, user_flags._replace(recipe=recipe))


def origins(plan: ServePlan) -> dict[str, str]:
    """Return setting → origin and value, of what the recipe or something stronger set."""
    weak = ("default", "accelerator", "stack", "variant", "decision")
    return {reason.setting: f"{reason.origin} {reason.value}" for reason in plan.reasons if reason.origin not in weak}


def findings(plan: ServePlan) -> dict[str, str]:
    """Return id → what was found, of the findings about recipes."""
    return {item.id: item.found for item in plan.findings if item.id.startswith("PLAN-16")}


def test_a_recipe_sets_what_it_says_of_this_hardware() -> None:
    plan = planned()
    assert origins(plan) == {
        "--async-scheduling": "recipe true",
        "--block-size": "recipe 32",
        "--enable-auto-tool-choice": "recipe true",
        "--enable-prefix-caching": "recipe false",
        "--max-num-batched-tokens": "recipe 8192",
        "--model": "command line abacus/Abacus-9",
        "--reasoning-parser": "recipe qwen3",
        "--tool-call-parser": "recipe hermes",
        "VLLM_USE_DEEP_GEMM": "recipe 1",
    }
    reason = next(reason for reason in plan.reasons if reason.setting == "--block-size")
    assert reason.because == "recipe abacus/Abacus-9 of 2026-08-03, verified on h100"
    assert "--no-enable-prefix-caching" in plan.argv
    (loss,) = next(reason.instead for reason in plan.reasons if reason.setting == "--enable-prefix-caching")
    assert loss.startswith("true: vLLM's usual choice")
    assert plan.env["VLLM_USE_DEEP_GEMM"] == "1"
    assert not findings(plan)


def test_overrides_are_those_of_the_hosts_own_brand() -> None:
    plan = planned(host="rocm-mi355x-8x")
    assert origins(plan)["--attention-backend"] == "recipe TRITON_ATTN"
    assert origins(plan)["VLLM_ROCM_USE_AITER"] == "recipe 0"
    assert origins(plan)["--reasoning-parser"] == "recipe x"
    assert "--async-scheduling" not in origins(plan)


def test_without_hardware_that_it_names_only_parsers_are_used() -> None:
    plan = planned(host="habana-gaudi2-8x")
    assert origins(plan).keys() == {
        "--model", "--enable-auto-tool-choice", "--reasoning-parser", "--tool-call-parser",
    }  # fmt: skip
    assert "not verified on this hardware" in {reason.because.rpartition(", ")[2] for reason in plan.reasons}
    assert "written for other hardware" in findings(plan)["PLAN-163"]


def test_a_consumers_card_has_blocks_only_if_the_recipe_names_it() -> None:
    facts = {**FACTS, "on": {"blackwell": {"flags": {"--moe-backend": "deep_gemm"}}}}
    assert "--moe-backend" not in origins(planned(facts=facts, host="cuda-gb10"))
    assert "--moe-backend" in origins(planned(facts={**facts, "verified": ["dgx_spark_gb10"]}, host="cuda-gb10"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"words": ("--block-size", "16")}, ("--block-size", "command line 16")),
        ({"env": {"VLLM_USE_DEEP_GEMM": "0"}}, ("VLLM_USE_DEEP_GEMM", "environment 0")),
        ({"profile": {"settings": []}}, ("--block-size", "recipe 32")),
    ],
)
def test_what_the_user_sets_wins(change: dict[str, Any], expected: tuple[str, str]) -> None:
    setting, value = expected
    assert origins(planned(**change))[setting] == value


@pytest.mark.parametrize(
    ("size", "words", "expected", "left_out"),
    [
        (8, (), "recipe 8", ""),
        ({"h100": 8}, (), "recipe 8", ""),
        ({"h200": 8}, (), None, ""),  # for another card
        (4, (), None, ""),  # the other four would be idle
        (16, (), None, "--tensor-parallel-size: the recipe names 16 devices, and this machine has 8"),
        (8, ("-tp", "2"), "command line 2", ""),
        (8, ("-dp", "2"), None, ""),
    ],
)
def test_a_tensor_parallel_size_for_all_devices_is_used(
    size: int | dict[str, int], words: tuple[str, ...], expected: str | None, left_out: str
) -> None:
    plan = planned(words, {**FACTS, "tp": size})
    assert origins(plan).get("--tensor-parallel-size") == expected
    assert findings(plan).get("PLAN-163", "") == left_out


def own_setting(origin: str) -> list[dict[str, Any]]:
    """Return the settings of a profile with one that has this origin."""
    added = {"setting": "--block-size", "value": 64, "origin": origin, "because": "measured", "source": "us"}
    return [*expect.profile_of("cuda-h100-8x")["settings"], added]


@pytest.mark.parametrize("origin", ["project's stack", "project's variant"])
def test_the_projects_own_stack_and_row_win_over_a_recipe(origin: str) -> None:
    plan = planned(profile={"settings": own_setting(origin)})
    assert origins(plan)["--block-size"] == f"{origin} 64"
    reason = next(reason for reason in plan.reasons if reason.setting == "--block-size")
    overruled = f"32 (recipe, overruled by {origin}): recipe abacus/Abacus-9 of 2026-08-03, verified on h100"
    assert reason.instead == (overruled,)


@pytest.mark.parametrize("origin", ["accelerator", "stack", "variant"])
def test_a_recipe_wins_over_what_drydock_sets(origin: str) -> None:
    assert origins(planned(profile={"settings": own_setting(origin)}))["--block-size"] == "recipe 32"


def test_a_recommendation_wins_over_a_recipe() -> None:
    when = {"model": "", "architecture": "", "card": "", "devices": None}
    advice = {"when": when, "serve": {"--block-size": {"value": 16, "because": "measured", "source": "us"}}}
    assert origins(planned(profile={"recommended": [advice]}))["--block-size"] == "recommendation 16"


def test_decisions_see_what_a_recipe_sets() -> None:
    facts = {**FACTS, "on": {"h100": {"flags": {"--max-model-len": "4096"}}}}
    assert origins(planned(facts=facts))["--max-model-len"] == "recipe 4096"
    assert {use.length for use in planned(facts=facts).uses} == {4096}


def test_lengths_that_do_not_fit_are_left_out_and_the_rest_stays() -> None:
    facts = {**FACTS, "on": {"h100": {"flags": {"--max-model-len": "9000000"}}}}
    plan = planned(facts=facts)
    assert "--max-model-len" not in origins(plan)
    assert origins(plan)["--block-size"] == "recipe 32"
    assert findings(plan)["PLAN-167"].startswith("--max-model-len: --max-model-len 9000000, of the recipe: ")


def test_lengths_without_hardware_are_drydocks_own() -> None:
    plan = planned(facts={**FACTS, "flags": {"--max-model-len": "1024", "--tensor-parallel-size": "1"}})
    assert "--max-model-len" not in origins(plan)
    assert "--tensor-parallel-size" not in origins(plan)
    assert not findings(plan)


LISTS = {
    "flags": {"--block-size": "int", "--reasoning-parser": "", "--tool-call-parser": "", "--attention-config": "json"},
    "tool_parsers": ["openai"],
    "reasoning_parsers": ["qwen3"],
    "variables": ["VLLM_OTHER"],
}


def test_what_this_vllm_lacks_is_left_out_and_said() -> None:
    plan = planned(lists=LISTS)
    assert origins(plan).keys() == {"--model", "--block-size", "--reasoning-parser"}
    text = findings(plan)["PLAN-163"]
    assert "--tool-call-parser: this vLLM does not take hermes" in text
    assert "--async-scheduling: this vLLM has no such flag" in text
    assert "VLLM_USE_DEEP_GEMM: this vLLM does not read it" in text


def test_the_lists_of_a_release_are_enough_to_leave_something_out() -> None:
    plan = planned(lists={"flags_of_release": LISTS["flags"], "variables_of_release": []})
    assert "--async-scheduling" not in origins(plan)
    assert "VLLM_USE_DEEP_GEMM" not in origins(plan)


def test_a_newer_vllm_is_named_with_the_row_that_has_it() -> None:
    facts = {**FACTS, "least_vllm": "9.1.0"}
    plan = planned(facts=facts, lists={"versions": {"cuda-old": "0.33.0", "cuda-new": "9.2"}})
    assert "--block-size" not in origins(plan)
    finding = next(finding for finding in plan.findings if finding.id == "PLAN-161")
    assert (finding.expected, finding.remediation) == ("vLLM 9.1.0", "with such a vLLM: --target cuda-new")


def test_a_nightly_is_needed_until_the_version_is_there() -> None:
    lists = {"versions": {"cuda-nightly": "0.33.1", "cuda": "0.33.0"}}
    plan = planned(facts={**FACTS, "nightly": True}, lists=lists)
    finding = next(finding for finding in plan.findings if finding.id == "PLAN-161")
    assert finding.remediation.endswith("--target cuda-nightly")
    assert "--block-size" in origins(planned(facts={**FACTS, "nightly": True, "least_vllm": "0.20.0"}))


@pytest.mark.parametrize("key", ["unsupported", "only_on"])
def test_a_recipe_for_other_hardware_is_not_used(key: str) -> None:
    plan = planned(facts={**FACTS, key: ["h100" if key == "unsupported" else "b200"]})
    assert origins(plan).keys() == {"--model"}
    assert findings(plan) == {"PLAN-162": "h100"}


def test_code_of_the_model_is_never_run_by_a_recipe() -> None:
    facts = {**FACTS, "needs_code": True}
    has = planned(facts=facts, lists={"architectures": [MODEL.architecture]})
    lacks = planned(facts=facts, lists={"architectures": ["TransformersForCausalLM"]})
    assert "--trust-remote-code" not in has.argv
    assert findings(has).keys() == {"PLAN-164"}
    assert findings(lacks).keys() == {"PLAN-165"}
    assert not findings(planned(("--trust-remote-code",), facts=facts))


def test_a_feature_is_used_by_name_and_says_that_it_loads_another_model() -> None:
    plan = planned(features=("spec", "text_only"))
    assert origins(plan)["--language-model-only"] == "recipe true"
    assert findings(plan)["PLAN-166"] == "abacus/Draft"
    assert "--speculative-config" not in origins(planned())


def test_an_unknown_feature_is_an_error_that_names_the_others() -> None:
    with pytest.raises(EntrypointError, match="has no such feature") as caught:
        planned(features=("mtp",))
    assert caught.value.hint == "it has reasoning, spec, text_only, tool_calling"


def test_no_tool_calls_is_no_parser_of_a_recipe_either() -> None:
    plan = planned(intents=NONE._replace(tools=False))
    assert "--tool-call-parser" not in plan.argv
    assert "--enable-auto-tool-choice" not in plan.argv


def test_a_server_of_vectors_needs_no_parser() -> None:
    assert "--tool-call-parser" not in planned(("--runner", "pooling")).argv


def test_keys_of_json_become_one_value_unless_the_user_sets_one() -> None:
    flags = {"--attention-config.backend": "FLASHINFER", "--attention-config.use_trtllm_attention": "true"}
    facts = {**FACTS, "flags": flags}
    assert origins(planned(facts=facts))["--attention-config"] == (
        'recipe {"backend": "FLASHINFER", "use_trtllm_attention": true}'
    )
    plan = planned(("--attention-config.backend", "FLASH_ATTN"), facts=facts)
    assert "--attention-config" not in plan.argv


HOSTILE: dict[str, Any] = {
    "recipe": "a\x1b[2J",
    "date": ["x"],
    "verified": ["h100"],
    "flags": {
        "--tool-parser-plugin": "/tmp/x.py",
        "--host": "evil",
        "--trust-remote-code": True,
        "--model": "other/Model",
        "--block-size": "1; rm -rf /",
        "--compilation-config": '{"inductor_passes": {"a": "os.system"}}',
        "--api-key": "k",
        "--brand-new": "1",
        "\x1b[2J": "x",
        "--dtype": ["x"],
        "--enforce-eager": "--trust-remote-code",
        "--load-format": "pt",
        "--limit-mm-per-prompt": '{"image": NaN}',
    },
    "env": {
        **dict.fromkeys(("VLLM_ROCM_X;touch x;", "AITER_\nX", "VLLM_ROCM_A=b", "VLLM_ROCM_\x1b", "AITER_JIT_DIR"), "1"),
        "VLLM_ENGINE_READY_TIMEOUT_S": "0",
        "LD_PRELOAD": "/tmp/x.so",
        "VLLM_USE_MODELSCOPE": "True",
        "VLLM_ROCM_X": "$(id)",
        "PATH": 5,
    },
    "on": {"h100": "x", "hopper": {"flags": ["--host"], "env": {"VLLM_PLUGINS": "x"}}},
    "features": {"tool_calling": {"flags": {"--tool-call-parser": "../x"}}, "reasoning": []},
    "least_vllm": {"x": 1},
    "left_out": {"\x1b[2J": "x", "--chat-template": "names a file"},
}


def test_a_mounted_file_with_anything_in_it_changes_no_command() -> None:
    usual, hostile = planned(facts={}), planned(facts=HOSTILE)
    assert (hostile.argv, hostile.env) == (usual.argv, usual.env)
    assert findings(hostile).keys() == {"PLAN-163"}
    assert findings(hostile)["PLAN-163"].isprintable()


# --- the file -------------------------------------------------------------------------------------------------------

TEXT = (
    '{"commit":"","date":"2026-08-21","schema":1,"models":{\n"a/M": {"date":"2026-08-03"},\n"b/N": {},\n"c/N": {}\n}}\n'
)


def written(folder: Path, text: str = TEXT, mode: int = 0o644) -> str:
    """Write a file of recipes."""
    path = folder / "recipes.json"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("model", "recipe_model"),
    [
        (MODEL._replace(name="a/M"), "a/M"),
        (MODEL._replace(name="a/m"), ""),
        (MODEL._replace(name="M"), ""),
        (MODEL._replace(name="/models/M", local=True), "a/M"),
        (MODEL._replace(name="/models/N", local=True), ""),
        (MODEL._replace(name="/hub/models--a--M/snapshots/0123/", local=True), "a/M"),
        (MODEL._replace(name="s3://bucket/M"), "a/M"),
    ],
)
def test_a_model_has_the_recipe_of_its_hub_id_or_of_the_only_one_with_its_name(
    model: ModelFacts, recipe_model: str, tmp_path: Path
) -> None:
    assert read_facts(written(tmp_path), model).model == recipe_model
    whole = json.dumps(json.loads(TEXT), indent=1)
    assert read_facts(written(tmp_path, whole), model).model == recipe_model


def test_a_file_that_another_user_could_have_written_is_not_read(tmp_path: Path) -> None:
    facts = read_facts(written(tmp_path, mode=0o666), MODEL._replace(name="a/M"))
    assert (facts.model, "every user can write to" in facts.problem) == ("", True)


@pytest.mark.parametrize("text", ["[]", "{", '{"models": []}', '{"models":{\n"a/M": [1]\n}}', "[" * 100_000])
def test_a_damaged_file_is_said_and_no_error(text: str, tmp_path: Path) -> None:
    facts = read_facts(written(tmp_path, text), MODEL._replace(name="a/M"))
    assert facts.problem.startswith(f"{tmp_path}/recipes.json: ")
    assert "\n" not in facts.problem


def test_without_a_file_there_is_no_recipe(tmp_path: Path) -> None:
    assert read_facts(f"{tmp_path}/recipes.json", MODEL) == RecipeFacts()
    os.mkfifo(tmp_path / "recipes.json", 0o600)
    assert not read_facts(f"{tmp_path}/recipes.json", MODEL).model


CARDS_OF_HOSTS = {
    "cuda-h100-8x": "h100",
    "cuda-h200-1x": "h200",
    "cuda-gb200-4x": "gb200",
    "cuda-gb10": "dgx_spark_gb10",
    "cuda-gh200": "",
    "cuda-rtx4090-8x": "",
    "cuda-a100-mig": "",
    "rocm-mi300x-8x": "mi300x",
    "rocm-mi300x-cpx": "",
    "rocm-mi355x-8x": "mi355x",
    "rocm-mi250x-4x": "",
    "xpu-arc-pro-b60-2x": "arc_pro_b60",
    "tpu-v6e-8x": "trillium",
    "cpu-xeon8380-2s": "",
    "habana-gaudi2-8x": "",
}


@pytest.mark.parametrize(("host", "name"), CARDS_OF_HOSTS.items())
def test_a_host_has_the_card_that_recipes_mean(host: str, name: str) -> None:
    """Not another card with a longer name, and no part of one."""
    profile = expect.profile_of(host)
    card = find_card(profile["accelerator"], expect.read(host, profile))
    assert (card.name if card else "") == name


def test_every_card_has_one_generation() -> None:
    assert len(GENERATION_OF) == len(CARDS)


def test_a_setting_of_another_profile_is_a_flag_or_a_variable() -> None:
    settings = [{"setting": "A;id", "value": "1", "origin": "variant", "because": "x", "source": "x"}]
    with pytest.raises(EntrypointError, match="expected a flag or the name of a variable"):
        planned(facts={}, profile={"settings": settings})
