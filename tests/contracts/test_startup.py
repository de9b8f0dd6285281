"""The start-up budget: 100 ms from process start to the start of vLLM, the least of several starts.

A bare interpreter, started in turns with it, tells how fast the machine is; on a slow or busy one the budget is a ratio
of CPU time, which waiting for a core does not change.
"""

from __future__ import annotations

import pytest

from bench.startup import MACHINES, summarize_starts

BUDGET_MS = 100
"""90 to 94 on each recorded host where a bare interpreter takes 8.5; a vendor's tool takes its own time on top."""
QUIET_MS = 9
"""The least time of a bare interpreter on a machine as fast as that one; on a slower one the ratio is asserted."""
RATIO = 18
"""CPU time of the entrypoint to that of a bare interpreter, the least of each: 11 on a quiet machine, 13 at a load
of 15."""
RUNS, TRIES = 9, 3
"""Another try is for what begins or ends on the machine in the middle of one."""


def too_slow(measured: dict[str, float]) -> str:
    """Say what is over the budget; empty when nothing is."""
    whole, bare = measured["serve_min_ms"], measured["interpreter_min_ms"]
    if bare <= QUIET_MS and whole > BUDGET_MS:
        return f"{whole} ms, expected at most {BUDGET_MS}; a bare interpreter takes {bare}"
    ratio = measured["serve_cpu_ms"] / measured["interpreter_cpu_ms"]
    return f"CPU time of {ratio:.1f} bare interpreters, expected at most {RATIO}" if ratio > RATIO else ""


@pytest.mark.parametrize("machine", MACHINES)
def test_vllm_starts_within_the_budget(machine: str) -> None:
    failures: list[str] = []
    while len(failures) < TRIES:
        failures.append(too_slow(summarize_starts(runs=RUNS, machine=machine)))
        if not failures[-1]:
            return
    raise AssertionError(failures)
