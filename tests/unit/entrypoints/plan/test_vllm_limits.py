"""What this vLLM refuses by its own lists is an error before it starts; what is only assumed is a warning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.lock.vllm_lists import lists_path, read_lists
from entrypoints.core.errors import REFUSED, USAGE, EntrypointError
from entrypoints.core.records import ServePlan
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.request.vllm_lists import VllmLists
from entrypoints.request.vllm_successors import SUCCESSORS
from tests.support.hosts.host_models import SMOLLM2
from tests.support.sample import PROFILE, facts


def lists_of(version: str) -> Mapping[str, Any]:
    vllm_lists = read_lists(lists_path(DRYDOCK, "vllm", version))
    assert vllm_lists
    return vllm_lists.lists


NEWEST = {**lists_of("0.33.0"), "packages": ["nixl", "runai-model-streamer"]}


def plan(
    *words: str,
    lists: Mapping[str, Any] = NEWEST,
    assumed: str = "",
    accepted: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    **model: Any,
) -> ServePlan:
    vllm_lists = VllmLists(lists, assumed)
    facts_of_model = SMOLLM2._replace(**model)
    user_flags = parse_user_flags((facts_of_model.name, *words), env or {}, vllm_lists.option_strings())
    user_flags = user_flags._replace(vllm=vllm_lists, accepted=accepted)
    return make_serve_plan({**PROFILE, "vllm": "0.33.0"}, facts(), facts_of_model, user_flags)


def refused(*words: str, **options: Any) -> EntrypointError:
    with pytest.raises(EntrypointError) as raised:
        plan(*words, **options)
    return raised.value


def findings(serve_plan: ServePlan) -> dict[str, tuple[str, str]]:
    return {item.id: (item.found, item.expected) for item in serve_plan.findings if item.id.startswith("PLAN-15")}


def test_a_configuration_that_vllm_takes_has_no_finding() -> None:
    assert findings(plan("--dtype", "bfloat16", "--max-model-len", "4k", "--limit-mm-per-prompt", '{"image": 2}')) == {}


def test_an_architecture_that_this_vllm_lacks_is_refused_with_the_rows_that_take_it() -> None:
    rows = {"architectures": {"Qwen3ForCausalLM": ["cuda13.0-vllm0.33"]}}
    old = {**lists_of("0.6.1.post1"), "rows": rows, "row_platforms": {"cuda13.0-vllm0.33": ["linux/amd64"]}}
    error = refused(lists=old, architecture="Qwen3ForCausalLM")

    assert error.code == REFUSED
    assert error.message.startswith("architecture Qwen3ForCausalLM: vLLM 0.33.0 would refuse it")
    assert "--target cuda13.0-vllm0.33 takes it" in error.hint
    assert "--vllm-accepts Qwen3ForCausalLM" in error.hint


OF_RELEASE = {"flags_of_release": NEWEST["flags"]}


@pytest.mark.parametrize(
    "words",
    [("--dtype", "banana"), ("--dtype", "fp8"), ("--runner", "quick"), ("--compilation-config", "{mode: 3}")],
)
def test_a_fork_takes_no_other_words_of_an_option_than_its_release(words: tuple[str, str]) -> None:
    error = refused(*words, lists=OF_RELEASE, assumed="of vLLM's release 0.33.0: a fork")

    assert error.message.endswith("(its list is of vLLM's release 0.33.0: a fork)")
    assert f"--vllm-accepts {words[0]}" in error.hint
    assert "PLAN-152" in findings(plan(*words, lists=OF_RELEASE, assumed="of a fork", accepted=(words[0],)))


@pytest.mark.parametrize(
    "words",
    [
        ("--dtype", "half"),
        ("--kv-cache-dtype", "fp8_of_the_fork"),
        ("--block-size", "96"),
        ("--compilation-config", '{"mode": 3}'),
    ],
)
def test_a_fork_may_add_to_options_of_platforms_and_sizes(words: tuple[str, str]) -> None:
    assert findings(plan(*words, lists=OF_RELEASE, assumed="of a fork")) == {}


@pytest.mark.parametrize(
    ("platforms", "named"),
    [
        ({"amd": ["linux/amd64"], "arm": ["linux/arm64"]}, "--target amd takes it"),
        ({"amd": ["linux/arm64", "linux/amd64"], "arm": ["linux/amd64"]}, "--target amd or arm take it"),
        ({"amd": ["linux/arm64"], "arm": ["linux/s390x"]}, "no row here that runs on this machine takes it"),
    ],
)
def test_rows_for_another_machine_are_not_named(platforms: dict[str, list[str]], named: str) -> None:
    rows = {"rows": {"architectures": {"Qwen3ForCausalLM": ["amd", "arm"]}}, "row_platforms": platforms}
    error = refused(lists={**lists_of("0.6.1.post1"), **rows}, architecture="Qwen3ForCausalLM")

    assert error.hint.startswith(named)


def test_a_row_for_other_cards_or_drivers_is_not_named() -> None:
    condition = {"fact": "processor.flags", "operator": "contains", "expected": ["avx2"], "when": []}
    needs_other = {**condition, "expected": ["avx99"]}
    rows = {
        "rows": {"architectures": {"Qwen3ForCausalLM": ["old", "new"]}},
        "row_platforms": {"old": ["linux/amd64"], "new": ["linux/amd64"]},
        "row_checks": {"old": [condition], "new": [needs_other]},
    }
    error = refused(lists={**lists_of("0.6.1.post1"), **rows}, architecture="Qwen3ForCausalLM")

    assert error.hint.startswith("--target old takes it")


def test_an_image_knows_no_rows_and_says_who_does() -> None:
    error = refused(lists=lists_of("0.6.1.post1"), architecture="Qwen3ForCausalLM")

    assert error.hint.startswith("in a checkout of drydock, ./inv plan --target ")


def test_an_architecture_that_transformers_may_serve_is_a_warning() -> None:
    unknown = {"architecture": "NovelForCausalLM"}
    assert findings(plan(**unknown))["PLAN-150"][0] == "architecture NovelForCausalLM"
    assert findings(plan("--model-impl", "transformers", **unknown)) == {}


FALLBACK = {
    "architectures": ["LlamaForCausalLM", "TransformersForCausalLM"],
    "fallback_architectures": ["XForCausalLM"],
}


@pytest.mark.parametrize(
    ("architecture", "words", "model"),
    [
        ("YForCausalLM", (), {}),
        ("YForCausalLM", ("--model-impl", "transformers"), {}),
        ("XForCausalLM", ("--model-impl", "vllm"), {}),
        ("XForCausalLM", (), {"quantization": "mxfp4"}),
    ],
)
def test_what_transformers_does_not_run_for_vllm_is_refused(
    architecture: str, words: tuple[str, ...], model: Mapping[str, Any]
) -> None:
    error = refused(*words, lists=FALLBACK, architecture=architecture, **model)

    assert error.code == REFUSED
    assert f"architecture {architecture}" in str(error)


@pytest.mark.parametrize(
    ("architecture", "words", "model", "expected"),
    [
        ("XForCausalLM", (), {}, ["PLAN-153"]),
        ("XForCausalLM", ("--model-impl", "transformers"), {}, ["PLAN-153"]),
        ("LlamaForCausalLM", (), {}, []),
        ("YForCausalLM", ("--trust-remote-code",), {"remote_code": True}, ["PLAN-150"]),
        ("YModel", (), {}, ["PLAN-150"]),
    ],
)
def test_what_transformers_runs_for_vllm_is_said(
    architecture: str, words: tuple[str, ...], model: Mapping[str, Any], expected: list[str]
) -> None:
    serve_plan = plan(*words, lists=FALLBACK, architecture=architecture, **model)

    assert list(findings(serve_plan)) == expected


def test_a_classifier_runs_on_the_generating_class_of_its_family() -> None:
    assert findings(plan(architecture="Qwen3MoeForTokenClassification")) == {}
    assert "PLAN-150" in findings(plan(architecture="NovelForTokenClassification"))


def test_an_architecture_that_vllm_dropped_says_until_when() -> None:
    assert "which vLLM had until 0.9.2" in findings(plan(architecture="Phi3SmallForCausalLM"))["PLAN-150"][0]


TYPES = {**NEWEST, "config_types": ["kimi_k25"], "transformers_types": ["llama", "qwen3"]}


@pytest.mark.parametrize("model_type", ["llama", "kimi_k25", ""])
def test_a_model_type_of_vllm_or_of_transformers_is_taken(model_type: str) -> None:
    assert findings(plan(lists=TYPES, model_type=model_type)) == {}


def test_a_model_type_that_neither_vllm_nor_transformers_knows_is_refused() -> None:
    error = refused(lists=TYPES, model_type="qwen9")
    assert (error.code, error.message.partition(":")[0]) == (REFUSED, "model type qwen9")
    assert "one of kimi_k25, llama, qwen3" in error.message
    assert refused("--trust-remote-code", lists=TYPES, model_type="qwen9").code == REFUSED
    assert findings(plan("--hf-overrides", '{"model_type": "qwen3"}', lists=TYPES, model_type="qwen9")) == {}


def test_a_model_with_code_of_its_own_needs_trust_for_a_type_of_its_own() -> None:
    remote_code = {"lists": TYPES, "model_type": "qwen9", "remote_code": True}
    assert "expected --trust-remote-code" in refused(**remote_code).message
    assert findings(plan("--trust-remote-code", **remote_code)) == {}


@pytest.mark.parametrize("word", ["float16", "half"])
def test_float16_is_refused_for_a_model_type_whose_numbers_exceed_it(word: str) -> None:
    error = refused("--dtype", word, model_type="gemma2")
    assert error.code == REFUSED
    assert f"--dtype {word} for model type gemma2 (numerical instability)" in error.message
    assert findings(plan("--dtype", "bfloat16", model_type="gemma2")) == {}
    assert findings(plan("--dtype", word, model_type="llama")) == {}


@pytest.mark.parametrize("method", ["bitsandbytes", "gguf", "made-up"])
def test_a_quantisation_that_this_vllm_lacks_is_refused(method: str) -> None:
    of_model, of_flag = refused(quantization=method), refused("--quantization", method)

    assert {of_model.code, of_flag.code} == {REFUSED}
    assert method in of_model.message
    assert f"--quantization {method}" in of_flag.message


@pytest.mark.parametrize("method", ["compressed_tensors", "compressed-tensors", "auto-round", "fp8", "awq", ""])
def test_names_that_vllm_translates_are_taken(method: str) -> None:
    assert findings(plan(quantization=method)) == {}


CONNECTOR = "--kv-transfer-config"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--distributed-executor-backend", "ray"), "ray"),
        (("--data-parallel-backend", "ray"), "ray"),
        (("--distributed-executor-backend", "mpi"), "mpi"),
        (("--load-format", "tensorizer"), "tensorizer"),
        (("--load-format", "gguf"), "gguf"),
        (("--tool-call-parser", "hermez"), "hermez"),
        (("--reasoning-parser", "qwen33"), "qwen33"),
        ((CONNECTOR, '{"kv_connector": "P2pNcclConnector", "kv_role": "kv_both"}'), "P2pNcclConnector"),
        ((CONNECTOR, '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'), "lmcache"),
        (
            (
                CONNECTOR,
                json.dumps(
                    {
                        "kv_connector": "MultiConnector",
                        "kv_role": "kv_both",
                        "kv_connector_extra_config": {"connectors": [{"kv_connector": "Gone"}]},
                    }
                ),
            ),
            "Gone",
        ),
    ],
)
def test_what_needs_a_package_or_a_name_that_is_not_there_is_refused_and_can_be_overruled(
    words: tuple[str, ...], names: str
) -> None:
    error = refused(*words)
    assert error.code == REFUSED
    assert f"--vllm-accepts {names}" in error.hint
    assert "PLAN-152" in findings(plan(*words, accepted=(names, "lmcache")))
    assert "PLAN-150" in findings(plan(*words, assumed="of a release"))


@pytest.mark.parametrize(
    "words",
    [
        ("--load-format", "runai_streamer"),
        ("--distributed-executor-backend", "mine.Executor"),
        ("--tool-call-parser", "mine", "--tool-parser-plugin", "/p.py"),
        (CONNECTOR, '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'),
        (CONNECTOR, '{"kv_connector": "Mine", "kv_connector_module_path": "mine", "kv_role": "kv_both"}'),
    ],
)
def test_what_is_there_or_brought_along_is_taken(words: tuple[str, ...]) -> None:
    assert findings(plan(*words)) == {}


@pytest.mark.parametrize(
    "words",
    [
        ("--dtype", "banana"),
        ("--dtype", "fp8"),
        ("--limit-mm-per-prompt", "video=5"),
        ("--compilation-config", "{broken"),
        ("--seed", "x"),
        ("--kv-offloading-size", "1GB"),
        ("-O4",),
        ("--prefix-match-unit", "0"),
    ],
)
def test_a_value_that_the_parser_refuses_is_an_error_of_usage(words: tuple[str, ...]) -> None:
    error = refused(*words)

    assert error.code == USAGE
    assert " ".join(words) in error.message


@pytest.mark.parametrize(
    "words",
    [
        ("--compilation-config", '{"cudagraph_capture_sizes": [1, 2], "mode": 3, "cudagraph_mode": "piecewise"}'),
        ("-cc.mode", "VLLM_COMPILE"),
        ("-cc.mode", "3"),
        ("-cc", '{"cudagraph_mode": 0}'),
        ("--moe-backend", "flashinfer-trtllm"),
        ("-O3",),
        ("--max-num-batched-tokens", "8k"),
        ("--seed", "-1"),
        ("--enforce-eager",),
        ("--no-enable-prefix-caching",),
    ],
)
def test_a_value_that_the_parser_takes_is_taken(words: tuple[str, ...]) -> None:
    assert findings(plan(*words)) == {}


def test_a_variable_that_vllm_does_not_read_is_said_with_what_to_write_instead() -> None:
    typo = plan(env={"VLLM_LOGING_LEVEL": "DEBUG"})
    serve_plan = plan(env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"})

    assert findings(typo) == {"PLAN-151": ("VLLM_LOGING_LEVEL", "VLLM_LOGGING_LEVEL")}
    assert findings(serve_plan) == {"PLAN-151": ("VLLM_ATTENTION_BACKEND", "use --attention-backend")}
    assert findings(plan(env={"VLLM_LOGGING_LEVEL": "DEBUG", "OTHER": "1"})) == {}


@pytest.mark.parametrize(("flag", "instead"), [("--task", "--runner"), ("--swap-space", "--kv-offloading-size")])
def test_a_removed_flag_names_vllms_own_successor(flag: str, instead: str) -> None:
    error = refused(flag, "4")

    assert error.code == USAGE
    assert instead in error.hint


def test_a_plugin_takes_float16_no_more_than_vllm_itself() -> None:
    """Ascend 310P and A770: their own type is float16, and vLLM's list is only assumed for them."""
    error = refused("--dtype", "float16", assumed="of a release", model_type="gemma2")

    assert (error.code, "bfloat16 or float32" in error.message) == (REFUSED, True)
    assert "--dtype float32" in error.hint
    assert findings(plan("--dtype", "float16", assumed="of a release", model_type="qwen2")) == {}
    assert "PLAN-150" in findings(plan(assumed="of a release", architecture="UnknownForCausalLM"))


OWN_LAYERS = '{"method": "mtp", "num_speculative_tokens": 1}'
NGRAM = '{"method": "ngram", "num_speculative_tokens": 1}'


PICTURES = {
    "architectures": ["LlavaForConditionalGeneration", "TransformersForCausalLM"],
    "required_packages": {"LlavaForConditionalGeneration": ["torchvision"]},
}


@pytest.mark.parametrize("words", [(), ("--language-model-only",), ("--limit-mm-per-prompt", '{"image": 0}')])
@pytest.mark.parametrize("architecture", ["LlavaForConditionalGeneration", "LlavaForSequenceClassification"])
def test_a_class_that_cannot_be_imported_is_refused_for_text_too(words: tuple[str, ...], architecture: str) -> None:
    rows = {"architectures": {"LlavaForConditionalGeneration": ["cpu-full"]}}
    lists = {**PICTURES, "packages": ["av"], "rows": rows, "row_platforms": {"cpu-full": ["linux/amd64"]}}
    error = refused(*words, lists=lists, architecture=architecture)

    assert error.code == REFUSED
    assert "LlavaForConditionalGeneration requires the package torchvision, which this image lacks" in str(error)
    assert error.hint.startswith("--target cpu-full takes it; --vllm-accepts LlavaForConditionalGeneration")
    assert "packages of a row of your own" in refused(lists={**lists, "rows": {}}, architecture=architecture).hint
    accepted = plan(*words, lists=lists, architecture=architecture, accepted=("LlavaForConditionalGeneration",))
    assert list(findings(accepted)) == ["PLAN-152"]


SWITCHES = {"flags": {"--language-model-only": "boolean", "--limit-mm-per-prompt": "json", "--model": "text"}}
LLAVA = {"architecture": "LlavaForConditionalGeneration", "modalities": ("image",)}


@pytest.mark.parametrize("words", [(), ("--language-model-only",), ("--limit-mm-per-prompt", '{"image": 0}')])
def test_a_model_serves_its_text_without_the_package_that_reads_its_images(words: tuple[str, ...]) -> None:
    rows = {"architectures": {LLAVA["architecture"]: ["cpu-full"]}}
    lists = {**PICTURES, **SWITCHES, "packages": ["av"], "rows": rows, "row_platforms": {"cpu-full": ["linux/amd64"]}}
    serve_plan = plan(*words, lists=lists, **LLAVA)
    reasons = {reason.setting: reason.because for reason in serve_plan.reasons}

    assert serve_plan.env["DRYDOCK_ABSENT_PACKAGES"] == "torchvision"
    assert serve_plan.argv.count("--language-model-only") == 1
    assert "the image lacks torchvision" in reasons["DRYDOCK_ABSENT_PACKAGES"]
    finding = next(finding for finding in serve_plan.findings if finding.id == "PLAN-065")
    assert (finding.found, finding.expected) == (
        "image input: the image lacks torchvision",
        "--target cpu-full takes it",
    )


@pytest.mark.parametrize(
    ("words", "lists", "changes"),
    [
        (("--no-language-model-only",), {}, {}),
        (("--limit-mm-per-prompt", '{"image": 2}'), {}, {}),
        ((), {"required_packages": {LLAVA["architecture"]: ["timm", "torchvision"]}}, {}),
        ((), {}, {"modalities": (), "table": {"vision_tower": "x"}}),
        ((), {}, {"env": {"VLLM_PLUGINS": "drydock"}}),
    ],
)
def test_what_text_alone_does_not_help_is_refused(
    words: tuple[str, ...], lists: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    error = refused(*words, lists={**PICTURES, **SWITCHES, "packages": [], **lists}, **{**LLAVA, **changes})

    assert error.code == REFUSED
    assert "this image lacks" in error.message


def test_a_model_without_other_input_needs_no_switch() -> None:
    serve_plan = plan(lists={**PICTURES, **SWITCHES, "packages": []}, architecture=LLAVA["architecture"])

    assert serve_plan.env["DRYDOCK_ABSENT_PACKAGES"] == "torchvision"
    assert "--language-model-only" not in serve_plan.argv


CONSTRUCTED = {
    "architectures": [
        "SmolVLMForConditionalGeneration",
        "DeepseekVLV2ForCausalLM",
        "CohereAsrForConditionalGeneration",
    ],
    "constructor_packages": {"DeepseekVLV2ForCausalLM": ["timm"]},
    "processor_packages": {"smolvlm": ["num2words"], "cohere_asr": ["librosa"]},
    "own_processors": ["CohereAsrForConditionalGeneration"],
}


@pytest.mark.parametrize(
    ("architecture", "model_type", "package"),
    [
        ("SmolVLMForConditionalGeneration", "smolvlm", "num2words"),
        ("DeepseekVLV2ForCausalLM", "deepseek_vl_v2", "timm"),
        ("CohereAsrForConditionalGeneration", "cohere_asr", ""),
    ],
)
def test_what_a_constructor_imports_is_refused_without_its_package(
    architecture: str, model_type: str, package: str
) -> None:
    model = {"architecture": architecture, "model_type": model_type}
    if not package:  # vLLM's own processor
        assert findings(plan(lists={**CONSTRUCTED, "packages": []}, **model)) == {}
        return
    error = refused(lists={**CONSTRUCTED, "packages": []}, **model)
    assert error.code == REFUSED
    assert f"requires the package {package}, which this image lacks" in error.message
    assert findings(plan("--language-model-only", lists={**CONSTRUCTED, "packages": []}, **model)) == {}
    assert findings(plan(lists={**CONSTRUCTED, "packages": [package]}, **model)) == {}


@pytest.mark.parametrize(
    ("lists", "words", "expected"),
    [
        ({"packages": ["torchvision"]}, (), []),
        ({}, (), []),
        ({"excluded_packages": ["torchvision"]}, (), ["PLAN-150"]),
        ({"packages": []}, ("--model-impl", "transformers"), []),
    ],
)
def test_a_package_that_is_there_not_known_or_not_needed_is_no_error(
    lists: Mapping[str, Any], words: tuple[str, ...], expected: list[str]
) -> None:
    assumed = "of another vLLM" if "excluded_packages" in lists else ""
    serve_plan = plan(
        *words, lists={**PICTURES, **lists}, assumed=assumed, architecture="LlavaForConditionalGeneration"
    )

    assert list(findings(serve_plan)) == expected


def test_what_is_not_known_is_not_refused() -> None:
    serve_plan = plan("--dtype", "banana", lists={}, architecture="X", quantization="y", env={"VLLM_Z": "1"})

    assert findings(serve_plan) == {}


def test_each_successor_is_of_something_that_a_vllm_had_and_the_newest_lacks() -> None:
    older = [lists_of(version) for version in ("0.6.1.post1", "0.8.0", "0.9.2", "0.11.0", "0.16.0", "0.23.0", "0.27.1")]
    older += [lists_of(version) for version in ("0.7.2", "0.18.0", "0.29.0")]
    once = {name for lists in older for kind in ("flags", "variables") for name in lists[kind]}
    now = {*NEWEST["flags"], *NEWEST["variables"]}

    assert SUCCESSORS.keys() - once == set()
    assert SUCCESSORS.keys() & now == set()


def test_a_vllm_that_pairs_enable_and_disable_takes_both() -> None:
    strings = VllmLists(lists_of("0.33.0")).option_strings()
    assert {"--disable-log-requests", "--enable-log-requests", "--no-enable-log-requests"} <= strings
    assert "--disable-log-requests" not in VllmLists(lists_of("0.32.0")).option_strings()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--compilation-config", '{"mode": 7}'), "--compilation-config: mode 7"),
        (("-cc.cudagraph_mode", "FULLY"), "--compilation-config: cudagraph_mode FULLY"),
        (("-cc", '{"cudagraph_mode": "0"}'), "--compilation-config: cudagraph_mode 0"),
        (("--compilation-config", '{"level": 3}'), "--compilation-config: key level"),
        (
            ("--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "both"}'),
            "--kv-transfer-config: kv_role both",
        ),
    ],
)
def test_a_key_or_a_word_of_a_json_option_that_vllm_lacks_is_an_error_of_usage(
    words: tuple[str, ...], message: str
) -> None:
    error = refused(*words)
    assert (error.code, error.message.partition(": vLLM")[0]) == (USAGE, message)


def test_a_fork_may_have_other_keys_and_takes_no_other_words() -> None:
    assumed = {"lists": {"keys_of_release": NEWEST["keys"]}, "assumed": "of vLLM's release 0.33.0: a fork"}
    assert findings(plan("--compilation-config", '{"level": 3}', **assumed)) == {}
    assert refused("--compilation-config", '{"mode": 7}', **assumed).code == USAGE


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"method": "mtp", "num_speculative_tokens": 1}, "method mtp for LlamaForCausalLM"),
        ({"method": "banana", "num_speculative_tokens": 1}, "method banana"),
        ({"method": "suffix"}, "suffix requires the package arctic-inference, which this image lacks"),
        ({"method": "medusa", "model": "x/y", "num_speculative_tokens": 2}, "method medusa"),
    ],
)
def test_a_drafting_method_that_vllm_lacks_for_a_model_is_refused(words: Mapping[str, Any], problem: str) -> None:
    error = refused("--speculative-config", json.dumps(words), model_type="llama")
    assert error.message.partition(": vLLM")[0].replace("config:", "config") == f"--speculative-config {problem}"


def test_a_model_that_only_answers_with_vectors_does_not_generate() -> None:
    assert refused("--runner", "generate", architecture="BertModel").message.startswith(
        "--runner generate for BertModel"
    )
    assert findings(plan("--runner", "generate", architecture="Qwen2ForCausalLM")) == {}
