"""What a supervised vLLM gets so that it drains well, and how long it may make no progress. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.core.cascade import COMMAND_LINE, DECISION, Chosen
from entrypoints.core.records import Reason, Value
from entrypoints.decide.spread.executor import PLUGIN, PYTHON_PATH
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import BATCHED, LENGTH, MIDDLEWARE, SHUTDOWN
from entrypoints.request.vllm_flags import UserFlags, parse_count

MIDDLEWARE_NAME = "drydock_plugin.draining.Refusals"
"""drydock's middleware for vLLM's server (plugin/drydock_plugin/draining.py)."""
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


def draining(given: UserFlags, timeout: float, exported: Mapping[str, Value]) -> dict[str, Value]:
    """Let vLLM finish running requests when it is stopped, and refuse new ones with 503, where it can."""
    values = {}
    if timeout and SHUTDOWN in given.known:
        because = "vLLM finishes running requests after SIGTERM, for as long as --drain-timeout"
        values[SHUTDOWN] = Value(str(-int(-timeout // 1)), because, ("0: vLLM's default, aborts them all",))
    if timeout and MIDDLEWARE in given.known and MIDDLEWARE not in given.flags and not _has_own_path(given, exported):
        because = "drydock's middleware answers new requests with 503 while the server stops"
        values[MIDDLEWARE] = Value(MIDDLEWARE_NAME, because, ("vLLM's own answer: 500 cannot schedule new futures",))
        before = exported.get(PYTHON_PATH)
        path = f"{before.value}:{PLUGIN}" if before and before.value else PLUGIN
        values[PYTHON_PATH] = Value(path, "where vLLM finds drydock's middleware")
    return values


def _has_own_path(given: UserFlags, exported: Mapping[str, Value]) -> bool:
    """Tell whether the user, or the base image, set the path on which the middleware would be found."""
    path = given.variable(PYTHON_PATH)
    return path is not None and path != PLUGIN and PYTHON_PATH not in exported


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
    batched = _number(BATCHED, chosen)
    if batched:
        return batched, BATCHED
    length = _number(LENGTH, chosen) or (model.geometry.max_length if model.geometry else None) or CHUNK
    return (CHUNK, "vLLM's largest default") if length > CHUNK else (length, "the longest prompt")


def _number(name: str, chosen: Mapping[str, Chosen]) -> int | None:
    text = str(chosen[name].value.value) if name in chosen else ""
    return None if text in ("", "auto", "-1") else parse_count(text, name)
