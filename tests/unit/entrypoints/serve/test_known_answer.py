"""The known answer with prepared replies, and the verb health with a real status server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from entrypoints.core.errors import NOT_READY, OK, WRONG_ANSWER
from entrypoints.serve.client import Endpoint, Reply, Unreachable
from entrypoints.serve.known_answer import (
    RIGHT,
    TOKENS,
    UNANSWERED,
    WRONG,
    AnswerVerdict,
    Ask,
    compare_known_answers,
    config_sha256,
    find_disagreement,
    verify_answers,
)
from entrypoints.serve.phases import READY, State
from entrypoints.serve.ports import listen_on_status_port
from entrypoints.serve.status import StatusServer, answer_path
from entrypoints.verbs.health_verb import check_health

TOKEN_IDS = list(range(4, 4 + TOKENS))
VALUES = [-0.1] * TOKENS
HUGE = json.dumps(
    {
        "data": [{"id": "m"}],
        "choices": [
            {
                "prompt_token_ids": [1, 2],
                "token_ids": TOKEN_IDS,
                "logprobs": {"token_logprobs": VALUES},
                "prompt_logprobs": [None, {}, *[{"4": {"logprob": 10**1000}}] * TOKENS],
                "message": 10**1000,
            }
        ],
    }
).encode()
PROFILE = {
    "known_answers": [
        {"model": "M", "config_sha256": "c0", "prompt": "Capital of France?", "contains": "Paris", "max_tokens": 9}
    ]
}


def prefilled(behind: float = 0.0) -> list[dict[str, Any]]:
    return [{str(token): {"logprob": -0.1}, "99": {"logprob": -0.1 + behind}} for token in TOKEN_IDS]


def server(answers: Mapping[str, Reply]) -> Ask:
    """Answer as a right server does, except for the paths in `answers`."""

    def ask(path: str, question: Mapping[str, Any] | None) -> Reply:
        if path in answers:
            return answers[path]
        if path == "/v1/models":
            return reply({"data": [{"id": "m"}]})
        assert question
        assert question["model"] == "m"
        if path == "/v1/chat/completions":
            return reply({"choices": [{"message": {"content": "It is Paris."}}]})
        if path != "/v1/completions":
            return reply({"detail": "Not Found"}, 404)
        if "prompt_logprobs" in question:
            assert question["prompt"] == [1, 2, *TOKEN_IDS]
            return reply({"choices": [{"prompt_logprobs": [None, {}, *prefilled()]}]})
        choice = {"text": "x", "prompt_token_ids": [1, 2], "token_ids": TOKEN_IDS}
        return reply({"choices": [{**choice, "logprobs": {"token_logprobs": VALUES}}]})

    return ask


def reply(body: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(body).encode())


def test_tokens_that_agree_are_right() -> None:
    assert find_disagreement(TOKEN_IDS, VALUES, prefilled(), 0.5) == ""


def test_another_token_far_ahead_in_prefill_is_a_disagreement() -> None:
    text = find_disagreement(TOKEN_IDS, VALUES, prefilled(behind=0.75), 0.5)
    assert text == "token 0: decode chose 4, prefill 99; 0.75 apart, 0.5 allowed"


def test_a_near_tie_is_not_a_disagreement() -> None:
    assert find_disagreement(TOKEN_IDS, VALUES, prefilled(behind=0.4), 0.5) == ""


def test_the_same_token_with_another_probability_is_a_disagreement() -> None:
    text = find_disagreement(TOKEN_IDS, [*VALUES[:-1], -1.1], prefilled(), 0.5)
    assert text == "token 15: 19 has log probability -1.10 in decode and -0.10 in prefill, 0.5 apart allowed"


@pytest.mark.parametrize("entry", [{"4": {"logprob": float("nan")}}, {"99": {"logprob": -0.1}}, {}, None])
def test_a_token_that_prefill_gives_no_number_is_a_disagreement(entry: Any) -> None:
    assert find_disagreement(TOKEN_IDS, VALUES, [entry, *prefilled()[1:]], 0.5).startswith("token 0: decode chose 4")


def test_too_few_tokens_are_a_disagreement() -> None:
    assert "found 15, 16 and 16" in find_disagreement(TOKEN_IDS[1:], VALUES, prefilled(), 0.5)


def test_a_right_server_is_right_and_says_what_was_compared() -> None:
    verdict = compare_known_answers(server({}), PROFILE, "c0")
    assert verdict.outcome == RIGHT
    assert verdict.notes[0].startswith("prefill and decode agree on 16 tokens: 'x' after ")
    assert verdict.notes[1] == "1 recorded answer of M given"


def test_another_recorded_answer_is_wrong() -> None:
    answer = reply({"choices": [{"message": {"content": "L'Étoile", "reasoning": None}}]})
    verdict = compare_known_answers(server({"/v1/chat/completions": answer}), PROFILE, "c0")
    assert verdict.outcome == WRONG
    assert verdict.reason == "'Capital of France?': expected an answer with 'Paris', found \"L'Étoile\""


def test_an_answer_among_the_reasoning_counts() -> None:
    answer = reply({"choices": [{"message": {"content": None, "reasoning": "Paris, I think"}}]})
    assert compare_known_answers(server({"/v1/chat/completions": answer}), PROFILE, "c0").outcome == RIGHT


@pytest.mark.parametrize("config", ["other", ""])
def test_a_model_without_a_recorded_answer_says_so(config: str) -> None:
    verdict = compare_known_answers(server({}), PROFILE, config)
    assert (verdict.outcome, verdict.notes[1]) == (RIGHT, "not compared: no answer is recorded for this model")


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (reply({"detail": "Not Found"}, 404), "this is not a generating model: /v1/completions answers 404 Not Found"),
        (
            reply({"error": {"message": "greater than max allowed: 0"}}, 400),
            "/v1/completions answers 400 greater than max allowed: 0",
        ),
        (reply({"choices": [{"text": "x"}]}), "this vLLM returns no token ids"),
    ],
)
def test_what_a_server_does_not_support_is_noted(answer: Reply, note: str) -> None:
    verdict = compare_known_answers(server({"/v1/completions": answer}), {}, "")
    assert (verdict.outcome, verdict.notes[0]) == (RIGHT, f"not compared: {note}")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "answer",
    [
        reply({"error": {"message": "boom"}}, 500),
        Reply(502, b"<html>"),
        Reply(200, b"{"),
        reply([]),
        reply({"choices": [], "data": []}),
        reply({"choices": [3], "data": [3]}),
        reply({"choices": [{"token_ids": 3, "prompt_token_ids": [1], "message": 3}], "data": [{}]}),
    ],
)
def test_a_failing_server_is_asked_again(path: str, answer: Reply) -> None:
    assert compare_known_answers(server({path: answer}), PROFILE, "c0").outcome == UNANSWERED


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_with_an_unknown_key_is_ready_with_a_note(status: int) -> None:
    verdict = compare_known_answers(server({"/v1/models": reply({"error": "Unauthorized"}, status)}), PROFILE, "c0")
    assert verdict.outcome == RIGHT
    assert verdict.notes == (
        f"not compared: /v1/models answers {status}; give the key in VLLM_API_KEY or --api-key, not in a file",
    )


def test_sampling_defaults_of_the_model_play_no_part() -> None:
    questions: list[Mapping[str, Any]] = []

    def ask(path: str, question: Mapping[str, Any] | None) -> Reply:
        questions.extend([question] if question else [])
        return server({})(path, question)

    assert compare_known_answers(ask, PROFILE, "c0").outcome == RIGHT
    assert questions
    assert all(question["repetition_penalty"] == 1 and question["top_p"] == 1 for question in questions)


def test_a_server_that_returns_too_few_tokens_is_not_compared() -> None:
    few = reply({"choices": [{"text": "x", "prompt_token_ids": [1, 2], "token_ids": TOKEN_IDS[:4]}]})
    verdict = compare_known_answers(server({"/v1/completions": few}), {}, "")
    assert verdict.outcome == RIGHT
    assert "returns at most 4 tokens" in verdict.notes[0]


def test_a_server_that_hangs_up_is_unanswered() -> None:
    def ask(path: str, question: Mapping[str, Any] | None) -> Reply:
        raise Unreachable(f"{path}: reset, asked {question}")

    assert compare_known_answers(ask, {}, "") == AnswerVerdict(UNANSWERED, "/v1/models: reset, asked None")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("status", "outcome"), [(200, UNANSWERED), (400, RIGHT), (500, UNANSWERED)])
def test_a_deep_answer_is_none(path: str, status: int, outcome: str) -> None:
    verdict = compare_known_answers(server({path: Reply(status, b"[" * 100_000)}), PROFILE, "c0")
    assert verdict.outcome == (UNANSWERED if path == "/v1/models" else outcome)


def test_an_answer_with_endless_numbers_is_none() -> None:
    assert compare_known_answers(server({"/v1/completions": Reply(200, HUGE)}), PROFILE, "c0").outcome == UNANSWERED


def test_only_a_server_that_completed_a_prompt_generates() -> None:
    assert compare_known_answers(server({}), PROFILE, "c0").generates
    for status in (400, 401, 404, 501):
        assert not compare_known_answers(server({"/v1/completions": Reply(status, b"{}")}), PROFILE, "c0").generates


def test_a_model_folder_is_known_by_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert config_sha256(str(tmp_path)) == hashlib.sha256(b"{}").hexdigest()
    assert config_sha256("org/model") == ""


@pytest.fixture
def status_port(request: pytest.FixtureRequest) -> int:
    """A status server that shows one state."""
    listener = listen_on_status_port(0)
    port = int(listener.getsockname()[1])
    status_server = StatusServer(listener, lambda path: answer_path(path, request.param, {}, 1.0))
    Thread(target=status_server.run, daemon=True).start()
    return port


READY_STATE = State(entered=(("plan", 0.0), (READY, 1.0)), healthy=True, verified=True)


@pytest.mark.parametrize(
    ("status_port", "expected"),
    [
        (READY_STATE, (OK, "")),
        (State(), (NOT_READY, "not ready: starting: plan")),
        (State(wrong="wrong answer: x"), (WRONG_ANSWER, "not ready: wrong answer: x")),
    ],
    indirect=["status_port"],
)
def test_health_asks_readyz_on_the_port_that_process_1_was_given(status_port: int, expected: tuple[int, str]) -> None:
    assert check_health((), ("python3", "serve", "--status-port", str(status_port)), {}) == expected
    assert check_health(("--status-port", str(status_port)), (), {}) == expected


def test_health_without_a_supervisor_asks_vllm_itself() -> None:
    command = ("/opt/venv/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--port", "1")
    code, reason = check_health((), command, {})
    assert code == NOT_READY
    assert reason.startswith("not ready: http://127.0.0.1:1/health: ")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("--status-port", "many"), "--status-port many: expected a port from 1 to 65535"),
        (("--url", "http://a b/"), "--url 'http://a b/': expected http://HOST:PORT/PATH"),
    ],
)
def test_health_with_an_invalid_port_or_url_is_not_ready(argv: tuple[str, ...], reason: str) -> None:
    code, message = check_health(argv, (), {})

    assert code == NOT_READY
    assert message.startswith(f"not ready: {reason}")


# --- several engines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engines", "expected_numbers"), [(1, {None}), (3, {0, 1, 2})])
def test_every_engine_is_asked(
    engines: int, expected_numbers: set[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_numbers: set[int | None] = set()

    def ask(endpoint: Endpoint, path: str, question: Mapping[str, Any] | None, _: float) -> Reply:
        engine_numbers.add(endpoint.engine)
        return server({})(path, question)

    monkeypatch.setattr("entrypoints.serve.known_answer.send_request", ask)
    verdict = verify_answers(Endpoint("127.0.0.1", 1), PROFILE, "", engines)

    assert (verdict.outcome, engine_numbers) == (RIGHT, expected_numbers)
    assert ("the same for each of 3 engines" in verdict.notes) == (engines == 3)


def test_one_wrong_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"choices": [{"prompt_logprobs": [None, {}, *prefilled(behind=5.0)]}]}

    def ask(endpoint: Endpoint, path: str, question: Mapping[str, Any] | None, _: float) -> Reply:
        is_prefill = question is not None and "prompt_logprobs" in question
        return reply(wrong) if endpoint.engine == 1 and is_prefill else server({})(path, question)

    monkeypatch.setattr("entrypoints.serve.known_answer.send_request", ask)
    verdict = verify_answers(Endpoint("127.0.0.1", 1), PROFILE, "", 2)

    assert verdict.outcome == WRONG
    assert verdict.reason.startswith("engine 1: ")
