"""What a supervised vLLM gets so that it drains well, and how long it may make no progress. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.core.records import Reason, Value
from entrypoints.core.settings_precedence import COMMAND_LINE, DECISION, Chosen
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import BATCHED, LENGTH, SHUTDOWN
from entrypoints.request.vllm_flags import UserFlags, parse_count

STALL = "--stall-seconds"
ONE_STEP = 60
"""Seconds of a step in addition to its prompt: compiling a graph for a shape that was not warmed, for example."""
SLOWEST = {"cpu": 30, "openvino": 30}
SLOWEST_DEVICE = 500
"""Tokens of a prompt per second below which a server counts as not working. A 7B model prefills about 100 per second
on 16 cores of a CPU, and more than 5,000 on the oldest device."""
CHUNK = 8192
"""Most tokens of a prompt that vLLM computes in one step, if --max-num-batched-tokens is not set (arg_utils.py). A
device that computes whole prompts is fast enough for the longest one in ONE_STEP."""


SILENT = Reason(STALL, "0", DECISION, "this host answers no clients: the first host tells whether there is progress")
"""For a host without an API server."""


def choose_draining(user_flags: UserFlags, timeout: float) -> dict[str, Value]:
    """Let vLLM finish running requests when it is stopped, where it can."""
    if not timeout or SHUTDOWN not in user_flags.known:
        return {}
    because = "vLLM finishes running requests after SIGTERM, for as long as --drain-timeout"
    return {SHUTDOWN: Value(str(-int(-timeout // 1)), because, ("0: vLLM's default, aborts them all",))}


def stall_reason(
    accelerator: str, model: ModelFacts, chosen: Mapping[str, Chosen], requested: float | None = None
) -> Reason:
    """Return after how many seconds without progress a server is not ready, and why; `requested` wins.

    Any change of an engine's counters is progress, so the time must cover only the longest step: the most tokens that
    vLLM computes at once.
    """
    if requested is not None:
        return Reason(STALL, f"{requested:g}", COMMAND_LINE, "given as --stall-seconds", ())
    tokens, name = _longest_step(model, chosen)
    rate = SLOWEST.get(accelerator, SLOWEST_DEVICE)
    because = f"{ONE_STEP} s, and the longest step, {tokens} tokens ({name}), at {rate} tokens per second"
    return Reason(STALL, str(ONE_STEP + -(-tokens // rate)), DECISION, because, ("0: a hung engine would stay ready",))


def _longest_step(model: ModelFacts, chosen: Mapping[str, Chosen]) -> tuple[int, str]:
    """Return the most tokens of one step, and what tells them."""
    batched = _read_chosen_number(BATCHED, chosen)
    if batched:
        return batched, BATCHED
    length = _read_chosen_number(LENGTH, chosen) or (model.geometry.max_length if model.geometry else None) or CHUNK
    return (CHUNK, "vLLM's largest default") if length > CHUNK else (length, "the longest prompt")


def _read_chosen_number(name: str, chosen: Mapping[str, Chosen]) -> int | None:
    text = str(chosen[name].value.value) if name in chosen else ""
    return None if text in ("", "auto", "-1") else parse_count(text, name)
