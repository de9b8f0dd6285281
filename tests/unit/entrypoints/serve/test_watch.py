"""The shared, and counting running requests."""

from __future__ import annotations

import pytest

from entrypoints.serve.phases import READY, SPAWN
from entrypoints.serve.watch import SharedState, parse_running

METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 2.0
vllm:num_requests_running{engine="1",model_name="a b"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a b"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a b",reason="capacity"} 4.0
vllm:num_requests_swapped{engine="0"} 8.0
"""


def test_running_and_waiting_requests_are_summed_over_engines() -> None:
    assert parse_running(METRICS) == 7.0


@pytest.mark.parametrize("text", ["", "# nothing\n", "http_requests_total 3\n", 'vllm:num_requests_running{a="b"} x\n'])
def test_metrics_that_count_no_requests_are_unknown_and_not_zero(text: str) -> None:
    assert parse_running(text) is None


def test_each_change_wakes_the_supervisor() -> None:
    woken: list[int] = []
    shared = SharedState(0.0, lambda: woken.append(1))
    shared.enter(SPAWN, 0.5)
    shared.note(healthy=True)
    shared.enter(READY, 2.0)
    assert len(woken) == 3
    assert shared.state.entered == (("plan", 0.0), (SPAWN, 0.5), (READY, 2.0))
    assert shared.state.healthy
