"""Work that is done elsewhere: in a child with limits, which reads the files of others, or in a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core import process
from drydock.core.errors import InputError
from drydock.core.process import call_limited
from drydock.core.threads import start_daemon
from drydock.lock.vllm_lists import read_program


def loop_forever() -> None:
    while True:
        pass


def parse_long_sum() -> None:
    compile("+1" * (8 << 20), "sum", "eval")


def raise_error() -> None:
    raise SyntaxError("bad\x1b[2J line")


def test_an_answer_comes_back_as_json() -> None:
    assert call_limited(lambda: {"a": ["b", None, 1], "é": {}}, "x") == {"a": ["b", None, 1], "é": {}}


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (loop_forever, "processor time"),
        (parse_long_sum, "MemoryError"),
        (lambda: bytes(1 << 30), "MemoryError"),
        (raise_error, "SyntaxError: bad\\x1b[2J line"),
        (lambda: "x" * (process.ANSWER_AT_MOST + 1), "expected at most"),
        (lambda: os.kill(os.getpid(), 9), "status 9"),
        (object, "TypeError"),
    ],
)
def test_what_does_not_end_or_fails_is_an_error_that_names_the_file(
    action: Callable[[], Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SECONDS_AT_MOST", 1 if action is loop_forever else 60)  # a busy machine's are slower
    monkeypatch.setattr(process, "MEMORY_AT_MOST", 128 << 20)
    monkeypatch.setattr(process, "ANSWER_AT_MOST", 1 << 20)

    with pytest.raises(InputError) as caught:
        call_limited(action, "/srv/vllm.whl")

    (problem,) = caught.value.problems
    assert problem.startswith("/srv/vllm.whl: ")
    assert words in problem
    assert problem.isprintable()


@pytest.mark.parametrize(
    "unit",
    [
        *(" ", "\t", "\n", "a", "0", "_", ".", "(", "[", "#", "@", "=", ":", ",", "\\", "-"),
        *(
            "@a\n",
            "class A(\n",
            "from a import (\n",
            "if is_vision_available():\n ",
            "class Attention",
            "import a,",
            "'''",
        ),
    ],
)
def test_a_file_of_one_long_run_is_read_in_time(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SECONDS_AT_MOST", 20)
    program = read_program(DRYDOCK)
    text = "if is_vision_available():\n" + unit * (200_000 // len(unit))

    def read_text() -> int:
        names = program.loaded_names(program.ALWAYS_TRUE.sub("", text))
        return len([*names, *program._raising_names(text), *program.CLASS_HEAD.findall(text)])

    assert call_limited(read_text, "x") >= 0


def test_the_answer_and_the_error_of_a_thread_arrive_where_they_are_awaited() -> None:
    assert start_daemon(lambda: 7).result(30) == 7
    with pytest.raises(ZeroDivisionError):
        start_daemon(lambda: 1 // 0).result(30)


def test_a_thread_does_not_hold_the_process() -> None:
    assert start_daemon(lambda: threading.current_thread().daemon).result(30)
