"""The exit code of a stop."""

from __future__ import annotations

import signal

import pytest

from entrypoints.core.errors import DIED, INTERNAL, LIMITED, NOT_READY, OK, STALLED, WRONG_ANSWER
from entrypoints.serve.exit_status import (
    KILLED,
    End,
    Stop,
    advise_on_memory,
    exit_code,
    requested_end,
    stop_at,
    unexpected_end,
)
from entrypoints.serve.phases import IMPORT, LOAD, READY, State

DRAIN = Stop(code=OK, drains=True, refuse_at=9.0, term_at=10.0, cut_at=20.0, kill_at=24.0)
PLAIN = DRAIN._replace(drains=False)


@pytest.mark.parametrize("passed", [0, 128 + signal.SIGTERM, 128 + signal.SIGINT])
def test_a_drain_that_vllm_ended_by_itself_is_0(passed: int) -> None:
    assert exit_code(DRAIN, passed, idle=False, cut=False) == OK


def test_a_crash_while_draining_is_passed_on() -> None:
    assert exit_code(DRAIN, 139, idle=False, cut=False) == 139
    assert exit_code(DRAIN._replace(code=INTERNAL), 0, idle=False, cut=False) == INTERNAL


def test_cut_requests_change_the_exit_code() -> None:
    assert exit_code(DRAIN, 0, idle=False, cut=True) == KILLED


@pytest.mark.parametrize("passed", [0, 1, 137])
def test_once_the_last_request_has_ended_nothing_can_be_lost(passed: int) -> None:
    assert exit_code(DRAIN, passed, idle=True, cut=True) == OK


@pytest.mark.parametrize("code", [OK, WRONG_ANSWER, NOT_READY])
def test_a_stop_without_requests_ends_with_its_own_code(code: int) -> None:
    assert exit_code(PLAIN._replace(code=code), 1, idle=False, cut=True) == code


# --- why a server ended ---------------------------------------------------------------------------------------------

SERVED = State(entered=(("plan", 0.0), (READY, 9.0)), healthy=True, verified=True)
STARTED = State(entered=(("plan", 0.0), (IMPORT, 0.1)))
OOM = "the kernel's OOM killer ended 1 process"


def unexpected(
    passed: int, state: State = SERVED, limits: str = "", *, until_ready: bool = False, prints: bool = False
) -> End:
    return unexpected_end(passed, state, limits, until_ready=until_ready, ready=state is SERVED, prints=prints)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (unexpected(0), DIED),
        (unexpected(0, STARTED), DIED),
        (unexpected(0, STARTED, prints=True), OK),
        (unexpected(0, STARTED, "the pids limit, for a thread that nobody needed", prints=True), OK),
        (unexpected(0, prints=True), DIED),
        (unexpected(0, State(entered=(("plan", 0.0), (LOAD, 1.0)))), DIED),
        (unexpected(0, STARTED, until_ready=True), NOT_READY),
        (unexpected(139), 139),
        (unexpected(0, SERVED._replace(lost="VLLM::EngineCore (process 7)")), DIED),
        (unexpected(137, limits=OOM), LIMITED),
        (unexpected(0, SERVED._replace(lost="VLLM::EngineCore (process 7)"), OOM), LIMITED),
    ],
)
def test_a_0_counts_only_if_help_was_asked_for(end: End, code: int) -> None:
    assert end.code == code


def test_the_cause_names_the_process_and_the_limit() -> None:
    end = unexpected(0, SERVED._replace(lost="VLLM::EngineCore (process 7) ended"), OOM)
    assert end.cause == f"VLLM::EngineCore (process 7) ended; {OOM}"


@pytest.mark.parametrize(
    ("end", "failed"),
    [
        (unexpected(1, STARTED), True),
        (unexpected(1), False),
        (unexpected(137, STARTED, OOM), False),
        (unexpected(0, STARTED), False),
        (requested_end(stop_at(0.0, WRONG_ANSWER, "wrong answer"), 0, State(wrong="x"), "", cut=False), True),
    ],
)
def test_caches_are_suspected_of_failed_starts_that_no_limit_explains(end: End, failed: bool) -> None:
    assert end.failed == failed


def test_remedies_for_too_little_memory_are_named_in_their_order_after_a_failed_start() -> None:
    remedies = ("a lower --gpu-memory-utilization", "--enforce-eager")
    failed = unexpected(1, STARTED)

    assert advise_on_memory(failed, remedies) == (
        "; if the log above says out of memory, try in this order: a lower --gpu-memory-utilization, --enforce-eager"
    )
    assert not advise_on_memory(failed, ())
    assert not advise_on_memory(unexpected(1), remedies)  # it was ready
    assert not advise_on_memory(
        unexpected(137, STARTED, OOM), remedies
    )  # the host's memory, for which there are other remedies
    assert not advise_on_memory(End(WRONG_ANSWER, "wrong answer", failed=True), remedies)


def test_a_stop_that_was_asked_for_says_so() -> None:
    drained = requested_end(DRAIN._replace(cause="SIGTERM received"), 0, SERVED._replace(idle=True), "", cut=False)
    cut = requested_end(DRAIN._replace(cause="SIGTERM received"), 0, SERVED._replace(running=3), OOM, cut=True)
    uncounted = requested_end(DRAIN._replace(cause="SIGTERM received"), 0, SERVED, "", cut=True)
    stalled = requested_end(stop_at(0.0, STALLED, "SIGTERM received"), 0, State(stalled="no token"), "", cut=False)
    assert drained == End(OK, "SIGTERM received: every request had ended")
    assert cut == End(KILLED, f"SIGTERM received: requests were cut off: 3; {OOM}")
    assert uncounted == End(KILLED, "SIGTERM received: requests were cut off")
    assert stalled == End(STALLED, "SIGTERM received: requests were lost, because no token")
