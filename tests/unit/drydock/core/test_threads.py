"""Work in a thread whose answer, or error, arrives where it is awaited."""

from __future__ import annotations

import threading

import pytest

from drydock.core.threads import start_daemon


def test_the_answer_and_the_error_arrive_where_they_are_awaited() -> None:
    assert start_daemon(lambda: 7).result(30) == 7
    with pytest.raises(ZeroDivisionError):
        start_daemon(lambda: 1 // 0).result(30)


def test_the_thread_does_not_hold_the_process() -> None:
    assert start_daemon(lambda: threading.current_thread().daemon).result(30)
