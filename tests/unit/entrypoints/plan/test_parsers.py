"""vLLM's parsers of tool calls and reasoning: by architecture and chat template, and what the user says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.lock.vllm_lists import list_every, lists_path, read_lists
from drydock.run.entrypoint import CONFIGURATIONS
from entrypoints.core.errors import REFUSED, USAGE, EntrypointError
from entrypoints.core.records import ServePlan
from entrypoints.model.parsers import REASONING, TOOLS
from entrypoints.plan import plan_text
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.request.vllm_lists import VllmLists
from tests.support.hosts.host_models import SMOLLM2
from tests.support.sample import PROFILE, facts

AUTO, TOOL, REASON = "--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser"

HERMES = '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>'
QWEN3 = HERMES + "{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>' }}{%- endif %}"
QWQ = HERMES + r"{{- '<|im_start|>assistant\n<think>\n' }}"
CODER = "<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>"
R1 = "{{'<｜tool▁calls▁begin｜>'}}{% set content = content.split('</think>')[-1] %}{{'<｜Assistant｜><think>\\n'}}"  # noqa: RUF001 -- DeepSeek's own bars
V3_1 = "{{'<｜Assistant｜></think>'}}{{'<｜tool▁calls▁begin｜>'}}"  # noqa: RUF001
GLM_4_6 = "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<think></think>"
GLM_4_7 = "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><think>"
KIMI = "{{ '<|im_system|>tool_declare<|im_middle|>' -}}"
LLAMA_3 = '{{- "Environment: ipython\\n" }}'
MISTRAL = '{{- "[TOOL_CALLS] [" }}'


def plan(
    *words: str,
    architecture: str = "LlamaForCausalLM",
    template: str | None = HERMES,
    vllm: str = "0.33.0",
    tools: bool = True,
    lists: Mapping[str, Any] = MappingProxyType({}),
    pooling: bool = False,
) -> ServePlan:
    model = SMOLLM2._replace(architecture=architecture, template=template, pooling=pooling)
    user_flags = parse_user_flags((model.name, *words), {})._replace(
        intents=Intents(tools=tools), vllm=VllmLists(lists)
    )
    return make_serve_plan({**PROFILE, "vllm": vllm}, facts(), model, user_flags)


def parsers_of(serve_plan: ServePlan) -> dict[str, tuple[str, str]]:
    return {
        reason.setting: (reason.value, reason.origin)
        for reason in serve_plan.reasons
        if reason.setting in (AUTO, TOOL, REASON)
    }


def missing(serve_plan: ServePlan) -> list[str]:
    return [finding.found for finding in serve_plan.findings if finding.id == "PLAN-100"]


@pytest.mark.parametrize(
    ("architecture", "template", "tool", "reasoning"),
    [
        ("Qwen2ForCausalLM", HERMES, "hermes", ""),
        ("Qwen2ForCausalLM", QWQ, "hermes", "deepseek_r1"),
        ("Qwen3ForCausalLM", QWEN3, "hermes", "qwen3"),
        ("Qwen3MoeForCausalLM", QWQ, "hermes", "deepseek_r1"),
        ("Qwen3MoeForCausalLM", CODER, "qwen3_xml", ""),
        ("Qwen3_5MoeForConditionalGeneration", CODER + QWEN3, "qwen3_coder", "qwen3"),
        ("DeepseekV3ForCausalLM", R1, "deepseek_v3", "deepseek_r1"),
        ("DeepseekV3ForCausalLM", V3_1, "deepseek_v31", "deepseek_v3"),
        ("DeepseekV3ForCausalLM", "{{'<｜tool▁calls▁begin｜>'}}", "deepseek_v3", ""),  # noqa: RUF001
        ("DeepseekV3ForCausalLM", KIMI, "kimi_k2", ""),
        ("DeepseekV3ForCausalLM", KIMI + "<think></think>", "kimi_k2", "kimi_k2"),
        ("LlamaForCausalLM", R1, "", "deepseek_r1"),
        ("LlamaForCausalLM", LLAMA_3, "llama3_json", ""),
        ("LlamaForCausalLM", HERMES, "hermes", ""),
        ("Llama4ForConditionalGeneration", None, "llama4_pythonic", ""),
        ("GptOssForCausalLM", None, "openai", "openai_gptoss"),
        ("Glm4MoeForCausalLM", GLM_4_6, "glm45", "glm45"),
        ("Glm4MoeForCausalLM", GLM_4_7, "glm47", "glm45"),
        ("MistralForCausalLM", MISTRAL, "mistral", ""),
        ("Mistral3ForConditionalGeneration", MISTRAL + "[THINK]", "mistral", "mistral"),
        ("MiniMaxM2ForCausalLM", None, "minimax_m2", "minimax_m2"),
        ("GraniteMoeHybridForCausalLM", HERMES, "granite4", ""),
        ("Gemma3ForCausalLM", "<start_function_call>", "functiongemma", ""),
        ("Gemma3ForCausalLM", "<start_of_turn>", "", ""),
        ("Phi3ForCausalLM", "<|tool|>", "phi4_mini_json", ""),
    ],
)
def test_parsers_follow_architecture_and_marks(
    architecture: str, template: str | None, tool: str, reasoning: str
) -> None:
    serve_plan = plan(architecture=architecture, template=template)
    expected = {TOOL: (tool, "decision"), AUTO: ("true", "decision")} if tool else {}
    expected |= {REASON: (reasoning, "decision")} if reasoning else {}

    assert parsers_of(serve_plan) == expected
    assert bool(missing(serve_plan)) == (not tool)
    assert (AUTO in serve_plan.argv) == bool(tool)


@pytest.mark.parametrize(
    ("name", "tool", "reasoning"),
    [
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3_xml", None),
        ("deepseek-ai/DeepSeek-R1", "deepseek_v3", "deepseek_r1"),
        ("openai/gpt-oss-120b", "openai", "openai_gptoss"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4_pythonic", None),
        ("moonshotai/Kimi-K2-Thinking", "kimi_k2", "kimi_k2"),
        ("zai-org/GLM-4.6", "glm45", "glm45"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral", None),
    ],
)
def test_known_models_get_their_parsers_without_a_hub(name: str, tool: str, reasoning: str | None) -> None:
    known_model = json.loads(CONFIGURATIONS.read_text())[name]
    parsers = parsers_of(
        plan(architecture=known_model["config"]["architectures"][0], template=known_model.get("template"))
    )

    assert (parsers[TOOL][0], parsers.get(REASON, (None,))[0]) == (tool, reasoning)


@pytest.mark.parametrize(
    ("architecture", "template", "vllm", "message"),
    [
        ("FalconForCausalLM", None, "0.33.0", "FalconForCausalLM"),
        ("Qwen3MoeForCausalLM", None, "0.33.0", "Qwen3MoeForCausalLM, no chat template was read"),
        ("Qwen3MoeForCausalLM", "{{ messages }}", "0.33.0", "Qwen3MoeForCausalLM, its chat template has none"),
        ("GptOssForCausalLM", None, "0.9.2", "gpt-oss; vLLM 0.9.2 does not have it"),
        ("", None, "0.33.0", "an unknown architecture"),
    ],
)
def test_what_is_unknown_is_not_set_and_said(architecture: str, template: str | None, vllm: str, message: str) -> None:
    vllm_lists = read_lists(lists_path(DRYDOCK, "vllm", vllm))
    assert vllm_lists
    names = {kind: vllm_lists.lists[kind] for kind in ("tool_parsers", "reasoning_parsers", "flags")}
    serve_plan = plan(architecture=architecture, template=template, vllm=vllm, lists=names)

    assert parsers_of(serve_plan) == {}
    assert missing(serve_plan) == [message]


@pytest.mark.parametrize("words", [(AUTO,), (AUTO, f"{TOOL}=")])
def test_tool_calls_without_a_parser_are_refused_before_vllm_refuses_them(words: tuple[str, ...]) -> None:
    with pytest.raises(EntrypointError, match=f"{AUTO} without {TOOL}") as raised:
        plan(*words, template=None)
    assert raised.value.code == REFUSED
    assert f"add {TOOL} NAME" in raised.value.hint


def test_tool_calls_without_a_parser_are_planned_if_the_user_insists_and_nothing_else_is_said_of_them() -> None:
    model = SMOLLM2._replace(template=None)
    user_flags = parse_user_flags((model.name, AUTO), {})._replace(accepted=(AUTO,))
    serve_plan = make_serve_plan({**PROFILE, "vllm": "0.33.0"}, facts(), model, user_flags)

    assert {"PLAN-100", "PLAN-152"} & {finding.id for finding in serve_plan.findings} == {"PLAN-152"}


def test_the_users_own_flags_win_and_are_completed() -> None:
    serve_plan = plan(TOOL, "llama3_json", f"{REASON}=", template=HERMES + R1)
    off = plan("--no-enable-auto-tool-choice")

    assert parsers_of(serve_plan) == {
        TOOL: ("llama3_json", "command line"),
        AUTO: ("true", "decision"),
        REASON: ("", "command line"),
    }
    assert serve_plan.argv.count(TOOL) == 1
    assert parsers_of(off) == {AUTO: ("false", "command line")}
    assert missing(serve_plan) == missing(off) == []


def test_tool_calls_are_switched_off() -> None:
    serve_plan = plan(tools=False, template=HERMES + R1)

    assert parsers_of(serve_plan) == {AUTO: ("false", "command line"), REASON: ("deepseek_r1", "decision")}
    assert AUTO not in serve_plan.argv
    assert missing(serve_plan) == []
    with pytest.raises(EntrypointError, match="--no-tool-calls and --tool-call-parser hermes: contradict") as raised:
        plan(TOOL, "hermes", tools=False)
    assert raised.value.code == USAGE


@pytest.mark.parametrize("words", [("--runner", "pooling"), ("--task", "embed"), ("--convert", "classify"), ()])
def test_a_server_that_writes_no_text_needs_no_parser(words: tuple[str, ...]) -> None:
    serve_plan = plan(*words, pooling=not words)

    assert parsers_of(serve_plan) == {}
    assert missing(serve_plan) == []


def test_a_parser_that_this_vllm_lacks_is_not_chosen() -> None:
    coder = {"architecture": "Qwen3MoeForCausalLM", "template": CODER}
    older = plan(**coder, lists={"tool_parsers": ["qwen3_coder", "hermes"]})
    without = plan(**coder, lists={"tool_parsers": ["hermes"]})
    not_known = plan(**coder)

    chosen = [parsers_of(serve_plan).get(TOOL, ("", ""))[0] for serve_plan in (older, without, not_known)]
    assert chosen == ["qwen3_coder", "", "qwen3_xml"]
    assert missing(without) == ["Qwen3-Coder; vLLM 0.33.0 does not have it"]


def test_a_template_that_the_wheel_lacks_is_named_unless_one_is_given() -> None:
    text = plan_text.format_reasons_text(plan(template=LLAMA_3))
    reasons = plan_text.format_reasons_text(plan("--chat-template", "/t.jinja", template=LLAMA_3))

    assert "[decision] Llama 3.1 to 3.3: the chat template has Environment: ipython (docs/features/tool" in text
    assert "not --chat-template examples/tool_chat_template_llama3.1_json.jinja: the source adds it" in text
    assert "examples/" not in reasons


def test_a_vllm_that_reads_reasoning_only_with_another_flag_gets_no_parser() -> None:
    flags = {REASON: "", "--enable-reasoning": "boolean"}
    old = plan(architecture="Qwen3ForCausalLM", template=QWEN3, lists={"flags": flags})
    none = plan(architecture="Qwen3ForCausalLM", template=QWEN3, lists={"flags": {"--model": ""}})

    assert REASON not in parsers_of(old)
    assert REASON not in parsers_of(none)


def test_each_parser_of_a_rule_is_one_of_vllm() -> None:
    version_lists = [lists.lists for lists in list_every(DRYDOCK)]
    for rules, kind in ((TOOLS, "tool_parsers"), (REASONING, "reasoning_parsers")):
        names = {name for lists in version_lists for name in lists.get(kind, ())}
        assert {name for rule in rules for name in rule.parsers} <= names


@pytest.mark.parametrize(
    ("architecture", "tools", "reasoning"),
    [
        ("HYV3ForCausalLM", "hy_v3", "hy_v3"),
        ("LagunaForCausalLM", "poolside_v1", "poolside_v1"),
        ("InklingForConditionalGeneration", "inkling", "inkling"),
        ("MiMoV2OmniForCausalLM", "mimo", "mimo"),
        ("MiMoV2FlashForCausalLM", "qwen3_xml", "qwen3"),
        ("BailingMoeV3ForCausalLM", "ling3", "ling3"),
        ("Dots3NoteForCausalLM", "dots", "qwen3"),
        ("MuseGlimmerForConditionalGeneration", "muse_glimmer", "muse_glimmer"),
        ("Step3p7ForConditionalGeneration", "step3p5", "step3p5"),
        ("InternS1ForConditionalGeneration", "internlm", "deepseek_r1"),
        ("MellumForCausalLM", "hermes", None),
    ],
)
def test_families_have_the_parsers_of_their_recipes(architecture: str, tools: str, reasoning: str | None) -> None:
    """Also models that no recipe names: fine-tuned ones."""
    known = read_lists(lists_path(DRYDOCK, "vllm", "0.33.0"))
    assert known
    names = {kind: known.lists[kind] for kind in ("tool_parsers", "reasoning_parsers", "flags")}
    parsers = parsers_of(plan(architecture=architecture, template="{{ messages }}", lists=names))

    assert parsers[TOOL][0] == tools
    assert parsers.get(REASON, (None,))[0] == reasoning
