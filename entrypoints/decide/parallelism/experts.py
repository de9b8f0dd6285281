"""When ranks hold whole experts (--enable-expert-parallel), by what is published for each platform. Pure."""

from __future__ import annotations

from entrypoints.core.parse import parse_version_numbers
from entrypoints.decide.parallelism.rules import Rules
from entrypoints.request.flags import ADAPTERS, SHARDED_ADAPTERS
from entrypoints.request.vllm_flags import UserFlags

_WITH_ADAPTERS = (0, 21)
"""Since this version vLLM spreads whole experts with LoRA adapters (0.18 asserts that it does not; vLLM pull 38021)."""


def experts_on_gpus(user_flags: UserFlags) -> str:
    """Return `Rules.expert` for GPUs by the aim: for latency, whole experts only where slices are impossible.

    vLLM's recipes label tensor parallelism "latency", expert parallelism over its ranks "balanced", and over engines
    "throughput" (vllm-project/recipes, strategies/single_node_*.yaml).
    """
    return {"latency": "needed", "throughput": "tp"}.get(user_flags.intents.optimize or "", "many")


def beside_adapters(
    rules: Rules, user_flags: UserFlags, vllm: str, since: tuple[int, ...] | None = _WITH_ADAPTERS
) -> Rules:
    """Return the rules without whole experts if the user's LoRA adapters forbid them: vLLM would not start.

    `since` is the first version of vLLM that has both; None if there is none. In every version ranks cannot also divide
    the adapters (vLLM 0.21 and 0.32, lora/layers/fused_moe.py, FusedMoEWithLoRA.__init__).
    """
    if user_flags.flag(ADAPTERS) != "True":
        return rules
    version = parse_version_numbers(vllm)
    if since is not None and version >= since and user_flags.flag(SHARDED_ADAPTERS) != "True":
        return rules
    return rules._replace(expert="")
