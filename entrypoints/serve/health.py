"""Is the server ready, and are its answers right? The verb `health`, and the known answer before ready. IO.

Tokens are right when prefill and decode agree on them, and when a model that has a recorded answer gives it. The two
paths run different kernels over the same weights: a wrong kernel, layout or cache shows as a disagreement.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from entrypoints.core.errors import NOT_READY, OK, WRONG_ANSWER
from entrypoints.host.processes import command_line
from entrypoints.serve.client import Endpoint, Reply, Unreachable, ask, flag, parse_endpoint

STATUS_PORT = 8001
VLLM_PORT = 8000
HTTP_OK = 200

PROMPT = (
    "The sun rises in the east and sets in the west. Every morning its light falls on the hills first, then on the "
    "river, and at last on the roofs of the town, where people open their windows and"
)
"""Plain prose with many likely continuations: a model sure of every token would hide a wrong kernel."""
TOKENS = 16
MARGIN = 0.5
"""Log probability by which a token may lie behind prefill's best, and by which prefill and decode may differ on it.
Two bfloat16 roundings of a logit near 20 make 0.25; at most 0.13 was seen on cpu, vLLM 0.32, SmolLM2-135M in bfloat16.
A profile's threshold `known_answer_margin` replaces it."""
PATIENCE = 300.0
"""Seconds to wait for one answer: the first may compile kernels."""

RIGHT, WRONG, UNANSWERED = "right", "wrong", "unanswered"


GREEDY = {
    "temperature": 0,
    "seed": 0,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "min_tokens": 0,
}
"""Said in full: a model's generation_config.json and --override-generation-config change what is left out."""


class AnswerVerdict(NamedTuple):
    """What became of comparing answers."""

    outcome: str
    """RIGHT, WRONG, or UNANSWERED when the server could not be asked and should be asked again."""
    reason: str = ""
    notes: tuple[str, ...] = ()
    """What was compared, and what could not be and why."""


class Refused(Exception):  # noqa: N818 -- an answer, not an error
    """The server will not do this with this model or these flags: a statement, not a wrong answer."""


class Forbidden(Exception):  # noqa: N818 -- as above
    """The server wants a key that is not known here, so its answers cannot be asked for."""


Ask = Callable[[str, Mapping[str, Any] | None], Reply]
"""Asks one path, with a question or without."""


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Ask whether the server in this container is ready: 0, NOT_READY or WRONG_ANSWER with the reason on stderr."""
    code, reason = health(argv, command_line(1), env)
    if reason:
        sys.stderr.write(f"drydock: {reason}\n")
    return code


def health(argv: Sequence[str], first: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Return exit code and reason; `first` is the command line of process 1, which knows the ports it was given."""
    try:
        reply = ask(*_whom_to_ask(argv, first, env))
    except (Unreachable, ValueError) as error:
        return NOT_READY, f"not ready: {error}"
    if reply.status == HTTP_OK:
        return OK, ""
    said = _json(reply)
    return (WRONG_ANSWER if said.get("wrong") else NOT_READY), f"not ready: {said.get('reason') or reply.status}"


def _whom_to_ask(argv: Sequence[str], first: Sequence[str], env: Mapping[str, str]) -> tuple[Endpoint, str]:
    port = flag(argv, "--status-port")
    if not port and ("--exec" in first or "-m" in first):  # no supervisor: vLLM is process 1, or below a small init
        return parse_endpoint(first, flag(first, "--host"), int(flag(first, "--port") or VLLM_PORT), env), "/health"
    return Endpoint("127.0.0.1", int(port or flag(first, "--status-port") or STATUS_PORT)), "/readyz"


def verify_answers(endpoint: Endpoint, profile: Mapping[str, Any], model: str) -> AnswerVerdict:
    """Compare the server's answers: prefill with decode, and with the recorded answer of this `model` folder."""
    return compare(lambda path, question: ask(endpoint, path, question, PATIENCE), profile, config_sha256(model))


def compare(ask_server: Ask, profile: Mapping[str, Any], config: str) -> AnswerVerdict:
    """Run each comparison; the first wrong one decides. `config` is the sha256 of the model's config.json."""
    notes: list[str] = []
    try:
        name = _model_name(ask_server)
        for comparison in (_prefill_with_decode, _recorded_answer):
            wrong, note = _stated(comparison, ask_server, name, profile, config)
            if wrong:
                return AnswerVerdict(WRONG, wrong, tuple(notes))
            notes.append(note)
    except Forbidden as error:
        return AnswerVerdict(RIGHT, "", (*notes, f"not compared: {error}"))
    except (Unreachable, Refused) as error:
        return AnswerVerdict(UNANSWERED, str(error))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return AnswerVerdict(UNANSWERED, f"an answer does not have vLLM's form: {error!r}")
    return AnswerVerdict(RIGHT, "", tuple(notes))


def config_sha256(model: str) -> str:
    """Return the sha256 of a model folder's config.json; empty for a model that is no local folder."""
    import hashlib

    try:
        with open(f"{model}/config.json", "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


Comparison = Callable[[Ask, str, Mapping[str, Any], str], tuple[str, str]]
"""Returns what is wrong (empty if nothing), and a note of what was compared."""


def _stated(
    comparison: Comparison, ask_server: Ask, name: str, profile: Mapping[str, Any], config: str
) -> tuple[str, str]:
    try:
        return comparison(ask_server, name, profile, config)
    except Refused as refusal:
        return "", f"not compared: {refusal}"


def _prefill_with_decode(ask_server: Ask, name: str, profile: Mapping[str, Any], config: str) -> tuple[str, str]:
    del config
    greedy = {"model": name, **GREEDY}
    decode = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True, "logprobs": 1}
    decoded = _choice(ask_server, "/v1/completions", greedy | decode)
    prompt, tokens = decoded.get("prompt_token_ids"), decoded.get("token_ids")
    if not prompt or tokens is None:
        raise Refused("this vLLM returns no token ids")
    if len(tokens) < TOKENS:
        raise Refused(f"this server gives {len(tokens)} tokens at most, {TOKENS} are compared")
    # vLLM does not read its prefix cache for a request with prompt_logprobs, so this is a prefill of every token.
    prefill = {"prompt": [*prompt, *tokens], "max_tokens": 1, "prompt_logprobs": 1}
    prefilled = _choice(ask_server, "/v1/completions", greedy | prefill)
    margin = float(profile.get("thresholds", {}).get("known_answer_margin", {}).get("value", MARGIN))
    values = (decoded.get("logprobs") or {}).get("token_logprobs") or ()
    wrong = disagreement(tokens, values, (prefilled.get("prompt_logprobs") or [])[len(prompt) :], margin)
    said = f"{decoded.get('text', '')!r} after {PROMPT!r}"
    return (f"{wrong}, in {said}" if wrong else ""), f"prefill and decode agree on {len(tokens)} tokens: {said}"


def disagreement(
    tokens: Sequence[int], values: Sequence[float], prefill: Sequence[Mapping[str, Any] | None], margin: float
) -> str:
    """Say where prefill disagrees with the decoded `tokens` and the `values` of their log probabilities. Pure.

    `prefill` holds the log probabilities of the likeliest token and of the decoded one, at each position.
    """
    if not len(tokens) == len(values) == len(prefill) == TOKENS:
        found = f"{len(tokens)}, {len(values)} and {len(prefill)}"
        return f"expected {TOKENS} tokens, log probabilities and prefilled positions, found {found}"
    positions = zip(tokens, values, prefill, strict=True)
    differences = (_differs(token, value, entry or {}, margin) for token, value, entry in positions)
    return next((f"token {position}: {text}" for position, text in enumerate(differences) if text), "")


def _differs(token: int, value: float, entry: Mapping[str, Any], margin: float) -> str:
    known = {key: float(item["logprob"]) for key, item in entry.items()}
    seen = known.get(str(token), float("nan"))
    best = max(known, key=lambda key: known[key], default="nothing")
    if not known.get(best, 0.0) - seen <= margin:  # NaN is within no margin
        return f"decode chose {token}, prefill {best}; {known.get(best, 0.0) - seen:.2f} apart, {margin:g} allowed"
    if not abs(value - seen) <= margin:
        return f"{token} has log probability {value:.2f} in decode and {seen:.2f} in prefill, {margin:g} apart allowed"
    return ""


def _recorded_answer(ask_server: Ask, name: str, profile: Mapping[str, Any], config: str) -> tuple[str, str]:
    known = [answer for answer in profile.get("known_answers", ()) if config and answer["config_sha256"] == config]
    if not known:
        raise Refused("no answer is recorded for this model")
    for answer in known:
        message = [{"role": "user", "content": answer["prompt"]}]
        question = {"model": name, "messages": message, **GREEDY, "max_tokens": answer["max_tokens"]}
        said = _choice(ask_server, "/v1/chat/completions", question).get("message", {})
        text = " ".join(str(said[key]) for key in ("reasoning", "content") if said.get(key))
        if answer["contains"] not in text:
            return f"{answer['prompt']!r}: expected an answer with {answer['contains']!r}, found {text!r}", ""
    return "", f"{len(known)} recorded answer{'s' if len(known) > 1 else ''} of {known[0]['model']} given"


def _model_name(ask_server: Ask) -> str:
    served = json.loads(_answered(ask_server("/v1/models", None), "/v1/models").body)
    return str(served["data"][0]["id"])


def _choice(ask_server: Ask, path: str, question: Mapping[str, Any]) -> Mapping[str, Any]:
    choice: Mapping[str, Any] = json.loads(_answered(ask_server(path, question), path).body)["choices"][0]
    return choice


def _answered(reply: Reply, path: str) -> Reply:
    """Return a 200; raise Refused for what this model or these flags do not do, Unreachable for all else."""
    if reply.status == HTTP_OK:
        return reply
    message = _message(reply)
    if reply.status in (401, 403):
        raise Forbidden(f"{path} answers {reply.status}; give the key in VLLM_API_KEY or --api-key, not in a file")
    if reply.status in (404, 405):
        raise Refused(f"this is not a generating model: {path} answers {reply.status} {message}")
    if reply.status in (400, 422):
        raise Refused(f"{path} answers {reply.status} {message}")
    raise Unreachable(f"{path} answers {reply.status} {message}")


def _message(reply: Reply) -> str:
    said = _json(reply)
    error = said.get("error")
    return str(error.get("message") if isinstance(error, dict) else error or said.get("detail") or "")


def _json(reply: Reply) -> dict[str, Any]:
    """Return the object an error came with, if it came with one."""
    try:
        value = json.loads(reply.body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
