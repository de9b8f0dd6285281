"""Checks whether a server's answers are right: the known answer. IO.

Tokens are right if prefill and decode agree on them, and if a model with a recorded answer gives that answer. Prefill
and decode run different kernels over the same weights, so a wrong kernel, layout or cache makes them disagree. A server
that generates no text is asked for vectors, scores or classes instead (pooled.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from entrypoints.serve import pooled
from entrypoints.serve.client import Endpoint, Reply, Unreachable, send_request

VLLM_PORT = 8000
HTTP_OK = 200

PROMPT = (
    "The sun rises in the east and sets in the west. Every morning its light falls on the hills first, then on the "
    "river, and at last on the roofs of the town, where people open their windows and"
)
"""Prose with many likely continuations: if the model were sure of every token, a wrong kernel would go unnoticed."""
TOKENS = 16
MARGIN = 0.5
"""Largest allowed difference of log probabilities: between a token and prefill's best one, and between prefill and
decode for a token. Rounding a logit near 20 to bfloat16 twice makes 0.25. Measured on CPUs with vLLM 0.32 and
SmolLM2-135M in bfloat16: at most 0.13. A profile's threshold `known_answer_margin` replaces it."""
PATIENCE = 300.0
"""Seconds to wait for one answer; the first request can compile kernels."""

COMPLETIONS = "/v1/completions"
UNEXPECTED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What an answer of another shape raises: deep JSON, numbers of a thousand digits, a list for an object."""

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
"""Complete, because a model's generation_config.json and --override-generation-config set what is omitted."""


class AnswerVerdict(NamedTuple):
    """The result of comparing answers."""

    outcome: str
    """RIGHT, WRONG, or UNANSWERED if the server gave no answer and must be asked again."""
    reason: str = ""
    notes: tuple[str, ...] = ()
    """What was compared, and what could not be and why."""
    generates: bool = False
    """Whether /v1/completions gave an answer, so that it can be asked again."""


class Refused(Exception):  # noqa: N818 -- an answer, not an error
    """The server does not support this request with this model or these flags; not a wrong answer."""


class Absent(Refused):
    """The server does not have this route."""


class Forbidden(Exception):  # noqa: N818 -- as above
    """The server requires an API key that is unknown here, so its answers cannot be compared."""


Ask = Callable[[str, Mapping[str, Any] | None], Reply]
"""Sends a request to a path, with or without a question."""


def verify_answers(endpoint: Endpoint, profile: Mapping[str, Any], model: str, engines: int = 1) -> AnswerVerdict:
    """Compare each engine's answers: prefill with decode, and with the recorded answer of this `model` folder."""
    config = config_sha256(model)
    first = _verify_engine(endpoint._replace(engine=0 if engines > 1 else None), profile, config)
    for number in range(1, engines if first.outcome == RIGHT else 1):
        verdict = _verify_engine(endpoint._replace(engine=number), profile, config)
        if verdict.outcome != RIGHT:
            return verdict._replace(reason=f"engine {number}: {verdict.reason}")
    several = (f"the same for each of {engines} engines",) if engines > 1 else ()
    return first._replace(notes=(*first.notes, *several))


def _verify_engine(endpoint: Endpoint, profile: Mapping[str, Any], config: str) -> AnswerVerdict:
    return compare_known_answers(
        lambda path, question: send_request(endpoint, path, question, PATIENCE), profile, config
    )


def served_model(endpoint: Endpoint) -> str:
    """Return the name of the served model; empty if the server does not tell it."""
    try:
        return _model_name(lambda path, question: send_request(endpoint, path, question))
    except (Unreachable, Refused, Forbidden, *UNEXPECTED):
        return ""


def compare_known_answers(ask_server: Ask, profile: Mapping[str, Any], config: str) -> AnswerVerdict:
    """Run each comparison until one is wrong. `config` is the sha256 of the model's config.json."""
    notes: list[str] = []
    answered: set[str] = set()

    def ask(path: str, question: Mapping[str, Any] | None) -> Reply:
        reply = ask_server(path, question)
        answered.update((path,) if reply.status == HTTP_OK else ())
        return reply

    try:
        name = _model_name(ask)
        for comparison in (_computed_twice, _recorded_answer):
            wrong, note = _run_comparison(comparison, ask, name, profile, config)
            if wrong:
                return AnswerVerdict(WRONG, wrong, tuple(notes))
            notes.append(note)
    except Forbidden as error:
        return AnswerVerdict(RIGHT, "", (*notes, f"not compared: {error}"), COMPLETIONS in answered)
    except (Unreachable, Refused) as error:
        return AnswerVerdict(UNANSWERED, str(error))
    except UNEXPECTED as error:
        return AnswerVerdict(UNANSWERED, f"an answer has an unexpected format: {error!r}")
    return AnswerVerdict(RIGHT, "", tuple(notes), COMPLETIONS in answered)


def config_sha256(model: str) -> str:
    """Return the sha256 of a model folder's config.json; empty if the model is not a local folder."""
    import hashlib

    try:
        with open(f"{model}/config.json", "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


Comparison = Callable[[Ask, str, Mapping[str, Any], str], tuple[str, str]]
"""Returns the error (empty if none) and a note on what was compared."""


def _run_comparison(
    comparison: Comparison, ask_server: Ask, name: str, profile: Mapping[str, Any], config: str
) -> tuple[str, str]:
    try:
        return comparison(ask_server, name, profile, config)
    except Refused as refusal:
        return "", f"not compared: {refusal}"


def _computed_twice(ask_server: Ask, name: str, profile: Mapping[str, Any], config: str) -> tuple[str, str]:
    try:
        return _prefill_with_decode(ask_server, name, profile, config)
    except Absent as absent:
        return _pooled_twice(ask_server, name, str(absent))


def _pooled_twice(ask_server: Ask, name: str, generates: str) -> tuple[str, str]:
    """Compare two answers of the first route that the server has. Raises Refused, with `generates`, if it has none."""
    refusals = [generates]
    for route in pooled.ROUTES:
        question = {"model": name, **route.question}
        try:
            first, second = (_require_answer(ask_server(route.path, question), route.path) for _ in range(2))
        except Absent:
            continue
        except Refused as refusal:
            if pooled.NOT_FINITE in str(refusal):
                return f"{refusal}: expected finite numbers", ""
            refusals.append(str(refusal))
            continue
        return pooled.find_pooled_disagreement(route, json.loads(first.body), json.loads(second.body))
    raise Refused("; ".join(refusals))


def _prefill_with_decode(ask_server: Ask, name: str, profile: Mapping[str, Any], config: str) -> tuple[str, str]:
    del config
    greedy = {"model": name, **GREEDY}
    decode = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True, "logprobs": 1}
    decoded = _ask_first_choice(ask_server, COMPLETIONS, greedy | decode)
    prompt, tokens = decoded.get("prompt_token_ids"), decoded.get("token_ids")
    if not prompt or tokens is None:
        raise Refused("this vLLM returns no token ids")
    if len(tokens) < TOKENS:
        raise Refused(f"this server returns at most {len(tokens)} tokens; the comparison needs {TOKENS}")
    # vLLM does not read its prefix cache for a request with prompt_logprobs, so this is a prefill of every token.
    prefill = {"prompt": [*prompt, *tokens], "max_tokens": 1, "prompt_logprobs": 1}
    prefilled = _ask_first_choice(ask_server, COMPLETIONS, greedy | prefill)
    margin = float(profile.get("thresholds", {}).get("known_answer_margin", {}).get("value", MARGIN))
    values = (decoded.get("logprobs") or {}).get("token_logprobs") or ()
    wrong = find_disagreement(tokens, values, (prefilled.get("prompt_logprobs") or [])[len(prompt) :], margin)
    answer = f"{decoded.get('text', '')!r} after {PROMPT!r}"
    return (f"{wrong}, in {answer}" if wrong else ""), f"prefill and decode agree on {len(tokens)} tokens: {answer}"


def find_disagreement(
    tokens: Sequence[int], values: Sequence[float], prefill: Sequence[Mapping[str, Any] | None], margin: float
) -> str:
    """Return where prefill disagrees with the decoded `tokens` and their log probabilities `values`. Pure.

    `prefill` has the log probabilities of the likeliest token and of the decoded one, at each position.
    """
    if not len(tokens) == len(values) == len(prefill) == TOKENS:
        counts = f"{len(tokens)}, {len(values)} and {len(prefill)}"
        return f"expected {TOKENS} tokens, log probabilities and prefilled positions, found {counts}"
    positions = zip(tokens, values, prefill, strict=True)
    differences = (_compare_token(token, value, entry or {}, margin) for token, value, entry in positions)
    return next((f"token {position}: {text}" for position, text in enumerate(differences) if text), "")


def _compare_token(token: int, value: float, entry: Mapping[str, Any], margin: float) -> str:
    logprobs = {key: float(item["logprob"]) for key, item in entry.items()}
    logprob = logprobs.get(str(token), float("nan"))
    best = max(logprobs, key=lambda key: logprobs[key], default="nothing")
    if not logprobs.get(best, 0.0) - logprob <= margin:  # NaN is within no margin
        return (
            f"decode chose {token}, prefill {best}; {logprobs.get(best, 0.0) - logprob:.2f} apart, {margin:g} allowed"
        )
    if not abs(value - logprob) <= margin:
        return (
            f"{token} has log probability {value:.2f} in decode and {logprob:.2f} in prefill, {margin:g} apart allowed"
        )
    return ""


def _recorded_answer(ask_server: Ask, name: str, profile: Mapping[str, Any], config: str) -> tuple[str, str]:
    answers = [answer for answer in profile.get("known_answers", ()) if config and answer["config_sha256"] == config]
    if not answers:
        raise Refused("no answer is recorded for this model")
    for answer in answers:
        message = [{"role": "user", "content": answer["prompt"]}]
        question = {"model": name, "messages": message, **GREEDY, "max_tokens": answer["max_tokens"]}
        answer_message = _ask_first_choice(ask_server, "/v1/chat/completions", question).get("message", {})
        text = " ".join(str(answer_message[key]) for key in ("reasoning", "content") if answer_message.get(key))
        if answer["contains"] not in text:
            return f"{answer['prompt']!r}: expected an answer with {answer['contains']!r}, found {text!r}", ""
    return "", f"{len(answers)} recorded answer{'s' if len(answers) > 1 else ''} of {answers[0]['model']} given"


def _model_name(ask_server: Ask) -> str:
    served = json.loads(_require_answer(ask_server("/v1/models", None), "/v1/models").body)
    return str(served["data"][0]["id"])


def _ask_first_choice(ask_server: Ask, path: str, question: Mapping[str, Any]) -> Mapping[str, Any]:
    choice: Mapping[str, Any] = json.loads(_require_answer(ask_server(path, question), path).body)["choices"][0]
    return choice


def _require_answer(reply: Reply, path: str) -> Reply:
    """Return a reply with status 200. Raises Refused for an unsupported request, Unreachable for any other status."""
    if reply.status == HTTP_OK:
        return reply
    message = _read_error_message(reply)
    if reply.status in (401, 403):
        raise Forbidden(f"{path} answers {reply.status}; give the key in VLLM_API_KEY or --api-key, not in a file")
    if reply.status in (404, 405):
        raise Absent(f"this is not a generating model: {path} answers {reply.status} {message}")
    if reply.status in (400, 422, 501):
        raise Refused(f"{path} answers {reply.status} {message}")
    raise Unreachable(f"{path} answers {reply.status} {message}")


def _read_error_message(reply: Reply) -> str:
    body = parse_reply_object(reply)
    error = body.get("error")
    return str(error.get("message") if isinstance(error, dict) else error or body.get("detail") or "")


def parse_reply_object(reply: Reply) -> dict[str, Any]:
    """Return the JSON object in a reply; empty if there is none."""
    try:
        value = json.loads(reply.body)
    except (RecursionError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
