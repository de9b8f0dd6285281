"""Which kernels and graphs an architecture needs on a card, as the recipes of its first models publish them. Pure.

For models of these architectures that no recipe names: a fine-tuned one, a copy, another precision. A model's own
recipe wins. Source: github.com/vllm-project/recipes at 8959cf64 (2026-08-21), the file that a rule names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.core.parse import parse_version_numbers
from entrypoints.core.records import Value
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import BLOCK_SIZE
from entrypoints.request.vllm_flags import UserFlags

AITER, AITER_EXPERTS = "VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_MOE"
AITER_ATTENTION, BREAKABLE = "VLLM_ROCM_USE_AITER_MHA", "VLLM_USE_BREAKABLE_CUDAGRAPH"
_M3 = ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration")
_V4 = ("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration")
_INKLING = ("InklingForCausalLM", "InklingForConditionalGeneration")
_ANY, _INSTINCT = "", ("gfx942", "gfx950")


class Rule(NamedTuple):
    """A setting of the recipes for models of an architecture."""

    architectures: tuple[str, ...]
    setting: str
    value: str
    recipe: str
    accelerator: str = _ANY
    """cuda or rocm; empty for both."""
    cards: tuple[str, ...] = ()
    """Architectures of the devices; none for all."""
    quantizations: tuple[str, ...] = ()
    """Methods of the weights; none for all."""


RULES = (
    Rule(("HYV3ForCausalLM",), AITER_EXPERTS, "0", "tencent/Hy3", "rocm", _INSTINCT),
    Rule(("InternS1ForConditionalGeneration",), AITER_EXPERTS, "0", "internlm/Intern-S1", "rocm", _INSTINCT),
    Rule(("Step3p5ForCausalLM",), AITER_EXPERTS, "0", "stepfun-ai/Step-3.5-Flash", "rocm", _INSTINCT),
    Rule(("LagunaForCausalLM",), AITER_EXPERTS, "0", "poolside/Laguna-S-2.1", "rocm", ("gfx942",), ("fp8",)),
    Rule(("MiMoV2FlashForCausalLM",), AITER, "0", "XiaomiMiMo/MiMo-V2-Flash", "rocm", _INSTINCT),
    Rule(_M3, AITER_ATTENTION, "0", "MiniMaxAI/MiniMax-M3", "rocm", ("gfx942",), ("mxfp8",)),
    Rule(_M3, BREAKABLE, "0", "MiniMaxAI/MiniMax-M3", "rocm"),
    Rule(_M3, BLOCK_SIZE, "128", "MiniMaxAI/MiniMax-M3"),
    Rule(("KimiK3ForConditionalGeneration",), BREAKABLE, "0", "moonshotai/Kimi-K3", "rocm"),
    Rule(_V4, BREAKABLE, "0", "deepseek-ai/DeepSeek-V4-Flash", "cuda", ("12.1",)),
    Rule(_V4, BLOCK_SIZE, "256", "deepseek-ai/DeepSeek-V4-Flash"),
    Rule(("DeepseekV32ForCausalLM",), BLOCK_SIZE, "1", "deepseek-ai/DeepSeek-V3.2-Exp", "rocm"),
    Rule(("Dots3NoteForCausalLM",), BLOCK_SIZE, "64", "dots-studio/dots3-note-prev"),
    Rule(_INKLING, BLOCK_SIZE, "128", "thinkingmachines/Inkling", "rocm"),
    Rule(("GptOssForCausalLM",), BLOCK_SIZE, "64", "openai/gpt-oss-120b", "rocm", _INSTINCT),
)
"""What is left out: settings for speed alone, and backends of attention, whose names change with versions."""


LEAST = {
    "tencent/Hy3": (0, 26),
    "internlm/Intern-S1": (0, 10),
    "stepfun-ai/Step-3.5-Flash": (0, 11),
    "poolside/Laguna-S-2.1": (0, 25),
    "XiaomiMiMo/MiMo-V2-Flash": (0, 11),
    "MiniMaxAI/MiniMax-M3": (0, 24),
    "moonshotai/Kimi-K3": (0, 27),
    "deepseek-ai/DeepSeek-V4-Flash": (0, 20),
    "deepseek-ai/DeepSeek-V3.2-Exp": (0, 12),
    "dots-studio/dots3-note-prev": (0, 28),
    "thinkingmachines/Inkling": (0, 26),
    "openai/gpt-oss-120b": (0, 10),
}
"""Recipe → the first vLLM that it is published for, its min_vllm_version. Kernels of an older one were not tried."""


def choose_kernels(
    profile: Mapping[str, Any], cards: set[str], model: ModelFacts, user_flags: UserFlags
) -> dict[str, Value]:
    """Return the settings of the rules for this architecture on these cards, as far as this vLLM has them."""
    return {
        rule.setting: Value(rule.value, f"recipe {rule.recipe} sets it for {model.architecture}", _instead(rule))
        for rule in _matching(profile["accelerator"], cards, model)
        if parse_version_numbers(profile["vllm"])[:2] >= LEAST[rule.recipe] and _is_known(rule.setting, user_flags)
    }


def _matching(accelerator: str, cards: set[str], model: ModelFacts) -> Iterator[Rule]:
    for rule in RULES:
        fits_host = rule.accelerator in (_ANY, accelerator) and (not rule.cards or cards <= set(rule.cards))
        fits_model = model.architecture in rule.architectures
        if fits_host and fits_model and (not rule.quantizations or model.quantization in rule.quantizations):
            yield rule


def _instead(rule: Rule) -> tuple[str, ...]:
    return ("vLLM's default: other kernels, which the recipe avoids on this card",) if rule.accelerator else ()


def _is_known(setting: str, user_flags: UserFlags) -> bool:
    """Return whether this vLLM has a flag or reads a variable, as far as that is known."""
    if setting.startswith("-"):
        return not user_flags.known or setting in user_flags.known
    variables = user_flags.vllm.own_or_assumed("variables")
    return variables is None or setting in variables
