"""The known answer of a server that generates no text: vectors, scores and classes, asked for twice. Pure.

The routes and their forms are those of vLLM 0.32 (entrypoints/pooling/*/protocol.py). An embedding model has /score
too, and a model that ranks has /classify, so the most telling route comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

TEXTS = (
    "The capital of France is Paris, a city on the river Seine.",
    "To make bread, mix flour, water, salt and yeast, and let the dough rise for an hour.",
)
"""Of different subjects, so that no model gives both the same vector."""
NOT_FINITE = "not JSON compliant"
"""What vLLM answers, with status 400, if a number is NaN or infinite: Python's json refuses it."""
_MARGIN = 0.01
"""Largest allowed difference of a number between equal requests, as a share of the largest one: bfloat16 rounds to
0.4 %, and the two can be computed in batches of different sizes."""


class PooledRoute(NamedTuple):
    """A route, and what it is asked."""

    path: str
    question: Mapping[str, Any]
    key: str
    """Of each entry of `data` that has the numbers."""
    what: str
    scale: float = 0.0
    """Least number that the margin is a share of: a score near zero says no more than zero."""
    is_vector: bool = False


ROUTES = (
    PooledRoute(
        "/v1/embeddings", {"input": TEXTS, "encoding_format": "float"}, "embedding", "a vector", is_vector=True
    ),
    PooledRoute("/score", {"text_1": TEXTS[0], "text_2": TEXTS}, "score", "a score", 1.0),
    PooledRoute("/classify", {"input": TEXTS}, "probs", "a class", 1.0),
    PooledRoute("/pooling", {"input": TEXTS}, "data", "an output"),
)


def find_pooled_disagreement(route: PooledRoute, first: Any, second: Any) -> tuple[str, str]:
    """Return what is wrong with two answers to the same question (empty if nothing), and a note on what was compared.

    Raises an error of lookup, type or value for an answer of another form.
    """
    first_numbers, again = _read_number_lists(route, first), _read_number_lists(route, second)
    lengths = [len(numbers) for numbers in first_numbers]
    if len(first_numbers) != len(TEXTS) or not all(lengths):
        return f"{route.path}: expected {route.what} for each of {len(TEXTS)} texts, found {lengths} numbers", ""
    if lengths != [len(numbers) for numbers in again] or (route.is_vector and len(set(lengths)) > 1):
        second_lengths = [len(numbers) for numbers in again]
        return f"{route.path}: expected as many numbers in each answer, found {lengths} and {second_lengths}", ""
    for number, (before, after) in enumerate(zip(first_numbers, again, strict=True)):
        wrong = _compare_vectors(before, after, route.scale)
        if wrong:
            return f"{route.path}: text {number}: {wrong}", ""
    if route.is_vector and (not any(first_numbers[0]) or not _compare_vectors(first_numbers[0], first_numbers[1], 0.0)):
        return f"{route.path}: expected another vector for another text, found the same, or only zeros", ""
    size_text = "1 number" if lengths[0] == 1 else f"{lengths[0]} numbers"
    return "", f"{route.path} gives equal answers to equal requests: {route.what} of {size_text} for each text"


def _compare_vectors(first: Sequence[float], second: Sequence[float], scale: float) -> str:
    odd = next((value for value in (*first, *second) if not isfinite(value)), None)
    if odd is not None:
        return f"found {odd}, expected finite numbers"
    allowed = _MARGIN * max(scale, *map(abs, first))
    far = max(abs(one - repeat) for one, repeat in zip(first, second, strict=True))
    return f"equal requests give numbers that are {far:.3g} apart, {allowed:.3g} allowed" if far > allowed else ""


def _read_number_lists(route: PooledRoute, answer: Any) -> list[list[float]]:
    """Return the numbers for each text, flat."""
    return [list(_flatten_numbers(entry[route.key])) for entry in answer["data"]]


def _flatten_numbers(value: Any) -> list[float]:
    """Flatten lists; null, which stands for NaN in JSON, becomes NaN again."""
    if isinstance(value, list):
        return [number for item in value for number in _flatten_numbers(item)]
    return [float("nan") if value is None else float(value)]
