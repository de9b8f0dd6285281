"""Commands, live and recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from entrypoints.host.commands import NOT_EXECUTABLE, NOT_FOUND, TIMED_OUT, Commands, run_live
from entrypoints.host.host import Host, Result
from tests.support.waiting import wait_until


def test_a_live_command_gives_code_and_output() -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"

    assert run_live((sys.executable, "-c", program), 20) == Result(3, "out\n", "err\n")


def test_a_command_that_is_not_there_is_not_found() -> None:
    assert run_live(("no-such-tool",), 1).rc == NOT_FOUND


def test_a_command_whose_library_is_missing_is_there(tmp_path: Path) -> None:
    loader = "tool: error while loading shared libraries: libx.so: cannot open shared object file"
    answers = {
        "tool": {"rc": 127, "stdout": f"{loader}\n"},
        "other": {"rc": 127, "stdout": "", "stderr": "sh: other: not found\n"},
    }
    (tmp_path / "commands.json").write_text(json.dumps(answers))
    commands = Commands(Host(str(tmp_path)))

    assert commands.run(("tool",), 1).rc == NOT_EXECUTABLE
    assert commands.run(("other",), 1).rc == NOT_FOUND


def test_a_command_that_hangs_is_ended() -> None:
    assert run_live((sys.executable, "-c", "import time; time.sleep(60)"), 0.2).rc == TIMED_OUT


def test_a_recorded_command_answers_as_it_did(tmp_path: Path) -> None:
    (tmp_path / "commands.json").write_text(json.dumps({"tool -q": {"rc": 0, "stdout": "7\n"}}))
    commands = Commands(Host(str(tmp_path)))

    assert commands.run(("tool", "-q"), 1) == Result(0, "7\n", "")
    assert commands.run(("tool", "-x"), 1).rc == NOT_FOUND
    assert commands.answers["tool -q"].stdout == "7\n"


def test_a_broken_record_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "commands.json").write_text('{"tool": {"stdout": "no code"}}')
    host = Host(str(tmp_path))

    assert Commands(host).run(("tool",), 1).rc == NOT_FOUND
    assert [failure.where for failure in host.failures] == ["/commands.json"]


def test_a_command_that_prints_without_end_is_ended_and_its_answer_is_not_kept() -> None:
    result = run_live((sys.executable, "-c", "while True: print('x' * 100000)"), 60)

    assert (result.rc, result.stdout) == (TIMED_OUT, "")
    assert "bytes" in result.stderr


def test_what_a_hanging_command_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    run_live(("sh", "-c", f"sh -c 'echo $$ > {note}; exec sleep 60' & wait"), 1.0)

    started = Path("/proc", note.read_text().strip())
    wait_until(lambda: not started.exists() or "Z" in (started / "stat").read_text().rpartition(")")[2], "its end")


def test_a_file_that_cannot_be_executed_says_so(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("")

    assert run_live((str(tmp_path / "tool"),), 1).rc == NOT_EXECUTABLE


def test_a_tool_that_hung_is_not_asked_again(tmp_path: Path) -> None:
    hung = {"rc": TIMED_OUT, "stdout": "", "stderr": "tool: no answer within 20 s"}
    (tmp_path / "commands.json").write_text(json.dumps({"tool": hung, "tool -q": {"rc": 0, "stdout": "7\n"}}))
    commands = Commands(Host(str(tmp_path)))
    commands.run(("tool",), 1)

    assert commands.run(("tool", "-q"), 1) == Result(TIMED_OUT, "", "tool: no answer within 20 s")
    assert commands.run(("other",), 1).rc == NOT_FOUND
