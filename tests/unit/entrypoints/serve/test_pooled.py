"""Vectors, scores and classes of a server that generates no text, with prepared replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from entrypoints.serve.client import Reply
from entrypoints.serve.known_answer import RIGHT, UNANSWERED, WRONG, AnswerVerdict, compare_known_answers

VECTORS = [[0.6, -0.8, 0.0], [0.1, 0.2, 0.97]]
KEYS = {"/v1/embeddings": "embedding", "/score": "score", "/classify": "probs", "/pooling": "data"}


def verdict(path: str, *answers: Any, status: int = 404) -> AnswerVerdict:
    """Compare the answers of a server that has only this route; the last one is repeated."""
    remaining = list(answers)

    def ask(route: str, question: Mapping[str, Any] | None) -> Reply:
        if route == "/v1/models":
            return Reply(200, b'{"data": [{"id": "m"}]}')
        if route != path:
            return Reply(status if route != "/v1/completions" else 404, b'{"detail": "Not Found"}')
        assert question
        assert question["model"] == "m"
        values = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        data = [{"index": index, KEYS[path]: value} for index, value in enumerate(values)]
        return Reply(200, json.dumps({"data": data}).encode())

    return compare_known_answers(ask, {}, "")


@pytest.mark.parametrize("status", [404, 405, 400, 501])
@pytest.mark.parametrize(
    ("path", "values", "note"),
    [
        ("/v1/embeddings", VECTORS, "a vector of 3 numbers"),
        ("/score", [0.9, 0.00001], "a score of 1 number"),
        ("/classify", [[0.9, 0.1], [0.9, 0.1]], "a class of 2 numbers"),
        ("/pooling", [[[0.5, 0.1], [0.2, 0.3]], [[0.5, 0.1]]], "an output of 4 numbers"),
    ],
)
def test_equal_answers_are_right_and_the_note_says_what_they_are(
    path: str, values: Any, note: str, status: int
) -> None:
    comparison = verdict(path, values, status=status)

    assert (comparison.outcome, comparison.generates) == (RIGHT, False)
    assert comparison.notes[0] == f"{path} gives equal answers to equal requests: {note} for each text"


@pytest.mark.parametrize(
    ("path", "first", "second", "reason"),
    [
        (
            "/v1/embeddings",
            VECTORS,
            [[0.6, -0.78, 0.0], VECTORS[1]],
            "text 0: equal requests give numbers that are 0.02",
        ),
        ("/v1/embeddings", [[0.6, None, 0.0], VECTORS[1]], None, "text 0: found nan, expected finite numbers"),
        ("/v1/embeddings", [VECTORS[0], [0.1, float("inf"), 0]], None, "text 1: found inf, expected finite numbers"),
        ("/v1/embeddings", VECTORS, [VECTORS[0], [1.0]], "found [3, 3] and [3, 1]"),
        ("/v1/embeddings", [[1.0], [1.0, 2.0]], None, "found [1, 2] and [1, 2]"),
        ("/v1/embeddings", VECTORS[:1], None, "found [3] numbers"),
        ("/v1/embeddings", [[], []], None, "found [0, 0] numbers"),
        ("/v1/embeddings", [VECTORS[0], VECTORS[0]], None, "expected another vector for another text"),
        ("/v1/embeddings", [[0.0, 0.0], [0.0, 1.0]], None, "expected another vector for another text"),
        ("/score", [0.9, 0.1], [0.9, 0.15], "text 1: equal requests give numbers that are 0.05 apart, 0.01 allowed"),
        ("/score", [float("nan"), 0.1], None, "text 0: found nan"),
        ("/classify", [[0.5, 0.5], [0.1, 0.9]], [[0.5, 0.5], [0.9, 0.1]], "text 1: equal requests"),
    ],
)
def test_other_answers_are_wrong(path: str, first: Any, second: Any, reason: str) -> None:
    comparison = verdict(path, first, second or first)

    assert comparison.outcome == WRONG
    assert reason in comparison.reason


@pytest.mark.parametrize(
    ("message", "outcome", "reason"),
    [
        ("Out of range float values are not JSON compliant", WRONG, "/score answers 400 Out of range float values"),
        ("this model scores images", RIGHT, "; /score answers 400 this model scores images"),
    ],
)
def test_a_number_that_vllm_cannot_write_is_wrong_and_another_refusal_is_noted(
    message: str, outcome: str, reason: str
) -> None:
    def ask(path: str, _: Mapping[str, Any] | None) -> Reply:
        if path == "/v1/models":
            return Reply(200, b'{"data": [{"id": "m"}]}')
        if path == "/score":
            return Reply(400, json.dumps({"error": {"message": message}}).encode())
        return Reply(404, b"{}")

    comparison = compare_known_answers(ask, {}, "")

    assert comparison.outcome == outcome
    assert reason in (comparison.reason or comparison.notes[0])


def test_rounding_is_no_difference() -> None:
    close = [[0.6 * 1.004, -0.8, 0.001], VECTORS[1]]

    assert verdict("/v1/embeddings", VECTORS, close).outcome == RIGHT
    assert verdict("/score", [0.9, 1e-5], [0.9, 3e-5]).outcome == RIGHT


@pytest.mark.parametrize("values", [["text", "text"], [{"a": 1}, {}], [10**1000, 1]])
def test_an_answer_of_another_form_is_asked_again(values: Any) -> None:
    assert verdict("/score", values).outcome == UNANSWERED


def test_a_server_with_none_of_these_routes_is_not_compared() -> None:
    comparison = verdict("/nothing")

    assert comparison.outcome == RIGHT
    assert comparison.notes[0] == "not compared: this is not a generating model: /v1/completions answers 404 Not Found"
