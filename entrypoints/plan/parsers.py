"""Which parsers vLLM gets for the model's tool calls and reasoning, by the rules of model/parsers.py. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import parse_version_numbers
from entrypoints.core.records import Notice, Value
from entrypoints.model.parsers import REASONING, TOOLS, Rule
from entrypoints.model.read import ModelFacts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import AUTO_TOOLS, CHAT_TEMPLATE, REASONING_PARSER, TOOL_PARSER
from entrypoints.request.intents import NO_TOOLS
from entrypoints.request.option_values import is_switched_on
from entrypoints.request.vllm_flags import UserFlags

_LISTS = {TOOL_PARSER: "tool_parsers", REASONING_PARSER: "reasoning_parsers"}
_USABLE_SINCE = {(REASONING_PARSER, "mistral"): (0, 32)}
"""Before, this parser works with Mistral's own tokenizer only. Source: vllm/reasoning/mistral_reasoning_parser.py."""
_GENERATES = {"--runner": ("auto", "generate"), "--task": ("auto", "generate"), "--convert": ("auto", "none")}
"""The values of vLLM's options with which a server writes text."""


def read_tool_choice(user_flags: UserFlags) -> dict[str, Value]:
    """Return what the user said about tool calls in drydock's words. Raises USAGE for the contrary in vLLM's."""
    if user_flags.intents.tools:
        return {}
    for name in (TOOL_PARSER, AUTO_TOOLS):
        if user_flags.flag(name) not in (None, "False"):
            raise EntrypointError(
                USAGE, f"{NO_TOOLS} and {user_flags.flags[name].given}: contradict", "give one of them"
            )
    return {AUTO_TOOLS: Value(False, f"given as {NO_TOOLS}")}


def choose_parsers(
    profile: Mapping[str, Any], model: ModelFacts, user_flags: UserFlags
) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Return the parsers, and a notice if no parser reads tool calls; a server that writes no text needs none."""
    if model.pooling or any((user_flags.flag(name) or "auto") not in values for name, values in _GENERATES.items()):
        return {}, ()
    preset = {item["setting"] for item in profile["settings"]} | user_flags.flags.keys()
    values = {}
    rule, name = _find_parser(REASONING, REASONING_PARSER, profile["vllm"], model, user_flags)
    if rule and name and REASONING_PARSER not in preset:
        values[REASONING_PARSER] = _make_parser_value(rule, name, user_flags)
    if not user_flags.intents.tools or user_flags.flag(AUTO_TOOLS) == "False":
        return values, ()
    if TOOL_PARSER in preset:
        return values | {AUTO_TOOLS: Value(True, f"{TOOL_PARSER} is set, and has no effect without it")}, ()
    rule, name = _find_parser(TOOLS, TOOL_PARSER, profile["vllm"], model, user_flags)
    if not (rule and name):
        if AUTO_TOOLS in preset:
            return values, ()  # refused as a whole
        return values, (make_notice("PLAN-100", *_explain_missing_parser(rule, profile["vllm"], model)),)
    auto = "clients may leave to the model whether it calls a tool; without it such a request is an error (HTTP 400)"
    return values | {TOOL_PARSER: _make_parser_value(rule, name, user_flags), AUTO_TOOLS: Value(True, auto)}, ()


def find_tool_refusals(settings: Mapping[str, str | bool]) -> Iterator[Refusal]:
    """Yield tool calls that are switched on without a parser for them.

    Source: vLLM 0.6 to 0.33, entrypoints/openai/cli_args.py, validate_parsed_serve_args.
    """
    if is_switched_on(settings, AUTO_TOOLS) and not settings.get(TOOL_PARSER):
        yield Refusal(
            AUTO_TOOLS,
            f"{AUTO_TOOLS} without {TOOL_PARSER}, and no known family of parsers fits the model",
            "both of them, or none",
            is_of_release=True,
            instead=f"add {TOOL_PARSER} NAME (docs/container.md lists the families), or leave {AUTO_TOOLS} out",
        )


def _find_parser(
    rules: tuple[Rule, ...], option: str, vllm: str, model: ModelFacts, user_flags: UserFlags
) -> tuple[Rule | None, str]:
    """Return the first rule that the model meets, and its first parser that this vLLM has; empty if it has none."""
    template = model.template or ""
    met = (
        rule
        for rule in rules
        if model.architecture in rule.architectures and all(map(template.__contains__, rule.marks))
    )
    rule = next(met, None)
    names = user_flags.vllm.names(_LISTS[option])
    if rule is None or (option == REASONING_PARSER and _lacks_reasoning(user_flags)):
        return rule, ""
    version = parse_version_numbers(vllm)[:2] or (9999,)  # a name is that of the main branch
    usable = (name for name in rule.parsers if version >= _USABLE_SINCE.get((option, name), (0,)))
    return rule, next((name for name in usable if names is None or name in names), "")


def _lacks_reasoning(user_flags: UserFlags) -> bool:
    """Return whether this vLLM has no reasoning parsers, or uses them only with a second flag, as until 0.9."""
    flags = user_flags.vllm.names("flags")
    return flags is not None and (REASONING_PARSER not in flags or "--enable-reasoning" in flags)


def _make_parser_value(rule: Rule, name: str, user_flags: UserFlags) -> Value:
    because = f"{rule.family}: " + (
        f"the chat template has {' and '.join(rule.marks)}" if rule.marks else "by architecture"
    )
    lacks = f"{CHAT_TEMPLATE} examples/{rule.template}: the source adds it, and vLLM's wheel lacks it; mount it"
    has_template = not rule.template or CHAT_TEMPLATE in user_flags.flags
    return Value(name, f"{because} ({rule.source})", () if has_template else (lacks,))


def _explain_missing_parser(rule: Rule | None, vllm: str, model: ModelFacts) -> tuple[str, str]:
    """Return what is missing for a tool-call parser, and what was expected."""
    if rule:
        return f"{rule.family}; vLLM {vllm} does not have it", f"{TOOL_PARSER} {' or '.join(rule.parsers)}"
    expected = "the marks of a known family in its chat template"
    if not model.architecture:
        return "an unknown architecture", expected
    if not any(model.architecture in tool_rule.architectures for tool_rule in TOOLS):
        return model.architecture, "an architecture of a known family"
    return (
        f"{model.architecture}, {'its chat template has none' if model.template else 'no chat template was read'}",
        expected,
    )
