"""The exit code of a stop."""

from __future__ import annotations

import signal

import pytest

from entrypoints.core.errors import NOT_READY, OK, WRONG_ANSWER
from entrypoints.serve.ending import KILLED, Stop, exit_code

DRAIN = Stop(code=OK, drains=True, refuse_at=9.0, term_at=10.0, cut_at=20.0, kill_at=24.0)
PLAIN = DRAIN._replace(drains=False)


@pytest.mark.parametrize("passed", [0, 128 + signal.SIGTERM, 128 + signal.SIGINT])
def test_a_drain_that_vllm_ended_by_itself_is_0(passed: int) -> None:
    assert exit_code(DRAIN, passed, idle=False, cut=False) == OK


def test_a_crash_while_draining_is_passed_on() -> None:
    assert exit_code(DRAIN, 139, idle=False, cut=False) == 139


def test_cut_requests_change_the_exit_code() -> None:
    assert exit_code(DRAIN, 0, idle=False, cut=True) == KILLED


@pytest.mark.parametrize("passed", [0, 1, 137])
def test_once_the_last_request_has_ended_nothing_can_be_lost(passed: int) -> None:
    assert exit_code(DRAIN, passed, idle=True, cut=True) == OK


@pytest.mark.parametrize("code", [OK, WRONG_ANSWER, NOT_READY])
def test_a_stop_without_requests_ends_with_its_own_code(code: int) -> None:
    assert exit_code(PLAIN._replace(code=code), 1, idle=False, cut=True) == code
