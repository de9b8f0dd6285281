"""Commands, live and recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from entrypoints.commands import NOT_FOUND, TIMED_OUT, Commands, run_live
from entrypoints.host import Host, Result


def test_a_live_command_gives_code_and_output() -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"

    assert run_live((sys.executable, "-c", program), 20) == Result(3, "out\n", "err\n")


def test_a_command_that_is_not_there_is_not_found() -> None:
    assert run_live(("no-such-tool",), 1).rc == NOT_FOUND


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
