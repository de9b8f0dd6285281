"""The start-up budget: 100 ms from process start to the start of vLLM."""

from __future__ import annotations

from tests.bench_startup import measure

BUDGET_MS = 100


def test_vllm_starts_within_the_budget() -> None:
    measured = measure(runs=9)

    assert measured["serve_median_ms"] <= BUDGET_MS, measured
