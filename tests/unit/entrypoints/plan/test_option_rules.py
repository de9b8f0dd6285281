"""Options that do not fit together are refused in the words of the releases that were asked; what fits is taken."""

from __future__ import annotations

import pytest

from entrypoints.plan.option_rules import RULES, Options, Rule, find_broken_rules, read_answers
from entrypoints.plan.refusal import Refusal
from entrypoints.request.speculative import parse_speculation
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.planned import models

TEXT, EXPERTS = "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"
GPTQ_WEIGHTS = "--hf-overrides {}"


def read_options(text: str, model: str = TEXT, accelerator: str = "cuda") -> Options:
    user_flags = parse_user_flags(tuple(text.split()), {})
    facts = models()[model]
    if "--hf-overrides" in text:  # the plan reads the overridden configuration
        facts = facts._replace(quantization="gptq")
    settings = {name: flag.value for name, flag in user_flags.flags.items()}
    return Options(accelerator, facts, user_flags, settings, parse_speculation(user_flags))


def find_refusals(text: str, model: str = TEXT, accelerator: str = "cuda", vllm: str = "0.32.0") -> list[Refusal]:
    options = read_options(text, model, accelerator)
    profile = {"vllm": vllm, "accelerator": accelerator}
    return [*find_broken_rules(profile, *options[1:])]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example)
def test_a_rule_is_broken_by_its_example_and_not_by_the_near_miss(rule: Rule) -> None:
    assert rule.is_broken(read_options(rule.refused, rule.model, rule.platform))
    assert not rule.is_broken(read_options(rule.taken, rule.model, rule.platform))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example)
def test_a_release_that_refuses_each_example_was_asked(rule: Rule) -> None:
    assert any(words.get(rule.example) for words in read_answers().values())


@pytest.mark.parametrize(
    ("text", "model", "problem"),
    [
        ("--max-num-batched-tokens 64 --max-num-seqs 128", TEXT, "--max-num-seqs 128 with --max-num-batched-tokens 64"),
        ("-dp 4 --data-parallel-rank 4", EXPERTS, "--data-parallel-rank 4 with --data-parallel-size 4"),
        ("-tp 2 --enable-eplb", EXPERTS, "--enable-eplb without --enable-expert-parallel"),
        ("-tp 4 -dcp 3", TEXT, "--decode-context-parallel-size 3 with --tensor-parallel-size 4"),
    ],
)
def test_the_options_are_named_as_they_are_set_and_vllm_is_quoted(text: str, model: str, problem: str) -> None:
    refusal = find_refusals(text, model)[0]

    assert refusal.problem == problem
    assert refusal.words in {words.rstrip(".") for words in read_answers()["0.32.0"].values()}


def test_a_release_that_takes_the_options_or_was_not_asked_refuses_nothing() -> None:
    staged = '-pp 2 --speculative-config {"method":"mtp","num_speculative_tokens":1}'
    (refusal,) = find_refusals(staged, "deepseek-ai/DeepSeek-R1", vllm="0.27.1")

    assert "0.32.0" in refusal.taken_by
    assert find_refusals(staged, "deepseek-ai/DeepSeek-R1", vllm="0.32.0") == []
    assert find_refusals(staged, "deepseek-ai/DeepSeek-R1", vllm="0.11.0") == []


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [("-tp 2", False), ("-tp 1 -pp 2", False), ("--performance-mode throughput", False), ("", True), ("-dp 2", True)],
)
def test_a_batch_of_cpus_grows_with_the_ranks_of_an_engine(text: str, is_refused: bool) -> None:
    refusals = find_refusals(f"--max-model-len 4096 --max-num-seqs 4096 {text}", accelerator="cpu")

    assert bool(refusals) == is_refused


@pytest.mark.parametrize("text", ["--enable-sleep-mode", "--prefill-context-parallel-size 2"])
def test_what_a_platform_lacks_is_refused_there_only(text: str) -> None:
    assert [refusal.name for refusal in find_refusals(text, accelerator="cpu")] == [text.split(maxsplit=1)[0]]
    assert find_refusals(text) == []


@pytest.mark.parametrize("method", ["awq", "compressed-tensors", "modelopt_mixed", "fp8_per_block", "auto_gptq"])
def test_weights_are_not_read_with_the_method_of_others(method: str) -> None:
    assert find_refusals(f"--quantization {method}", "deepseek-ai/DeepSeek-R1")[0].problem == f"--quantization {method}"


@pytest.mark.parametrize(
    ("method", "model", "weights"),
    [
        *((method, "deepseek-ai/DeepSeek-R1", "") for method in ("fp8", "deepseek_v4_fp8", "humming")),
        *((method, TEXT, GPTQ_WEIGHTS) for method in ("gptq_marlin", "moe_wna16")),
    ],
)
def test_a_method_that_vllm_takes_for_the_weights_is_taken(method: str, model: str, weights: str) -> None:
    """So vLLM 0.32 answered, asked about each of its 30 methods."""
    assert find_refusals(f"{weights} --quantization {method}", model) == []
