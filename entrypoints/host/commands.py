"""Runs the vendor's tools for a probe, or returns their recorded output. IO."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from entrypoints.core.parse import parse_untrusted_json
from entrypoints.host.host import Host, Result, Run

if TYPE_CHECKING:
    import subprocess
    from typing import IO

RECORD = "/commands.json"
"""File of a recorded host that is a folder: `{"tool -flag": {"rc": 0, "stdout": "…", "stderr": "…"}}`."""

NOT_FOUND = 127
NOT_EXECUTABLE = 126
TIMED_OUT = 124
ANSWER_AT_MOST = 4 << 20
"""Largest output in bytes. The topology of sixteen cards as JSON takes 100 kB."""


class Commands:
    """Runs commands for one host and keeps their results for the recorder."""

    def __init__(self, host: Host) -> None:
        self._run: Run = run_live if host.live else make_recorded_run(host)
        self.answers: dict[str, Result] = {}
        self._hung: dict[str, Result] = {}

    def run(self, argv: tuple[str, ...], timeout: float) -> Result:
        """Run a command for at most `timeout` seconds. The code is 127 if it does not exist, 124 if it timed out.

        It is 126 where the command exists and ended with 127, as the loader does that finds no library of it.

        A tool that timed out once is not run again, because the driver would not answer the next command either.
        """
        result = self._hung.get(argv[0]) or self._run(argv, timeout)
        if result.rc == NOT_FOUND and not _is_absent(result):
            result = result._replace(rc=NOT_EXECUTABLE)
        if result.rc == TIMED_OUT:
            self._hung[argv[0]] = result
        self.answers[" ".join(argv)] = result
        return result


def _is_absent(result: Result) -> bool:
    """Tell whether an answer is that of a command that does not exist: nothing, our words, or a shell's."""
    words = (result.stdout + result.stderr).rstrip()
    return not words or words.endswith(("not found", "not recorded"))


def run_live(
    argv: tuple[str, ...], timeout: float, env: Mapping[str, str] | None = None, folder: str | None = None
) -> Result:
    """Run a command on this system. On a time-out or too much output it is killed, with all processes it started.

    `env` and `folder` are this process's own by default.
    """
    import subprocess

    with _memory_file() as out, _memory_file() as err:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, env=env, cwd=folder
            )
        except FileNotFoundError:
            return Result(NOT_FOUND, "", f"{argv[0]}: not found")
        except OSError as error:
            return Result(NOT_EXECUTABLE, "", f"{argv[0]}: {error.strerror} (errno {error.errno})")
        kill_reason = _wait_for_end(process, timeout, (out, err))
        if kill_reason:
            return Result(TIMED_OUT, "", f"{argv[0]}: {kill_reason}")
        return Result(process.returncode, _read_output(out), _read_output(err))


def _memory_file() -> IO[bytes]:
    """Return an anonymous file in memory. Unlike a pipe it does not fill up, and it needs no writable folder."""
    return os.fdopen(os.memfd_create("answer"), "w+b")


def _wait_for_end(process: subprocess.Popen[bytes], timeout: float, outputs: tuple[IO[bytes], ...]) -> str:
    """Wait for a command to end; return why it was killed, or an empty text."""
    import signal
    import time

    end, pause = time.monotonic() + timeout, 0.001
    try:
        while process.poll() is None:
            size = max(os.fstat(output.fileno()).st_size for output in outputs)
            if size > ANSWER_AT_MOST:
                return f"more than {ANSWER_AT_MOST} bytes"
            if time.monotonic() > end:
                return f"no answer within {timeout:g} s"
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
    finally:  # also when a signal ends the waiting
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return ""


def _read_output(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(ANSWER_AT_MOST).decode(errors="replace")


def make_recorded_run(host: Host) -> Run:
    """Return a Run that looks results up in a recorded host. A command that was not recorded is not found."""
    answers: dict[str, Result] = host.part(RECORD, parse_answers, {})

    def run(argv: tuple[str, ...], timeout: float) -> Result:
        del timeout  # a recorded result needs no waiting
        return answers.get(" ".join(argv), Result(NOT_FOUND, "", f"{argv[0]}: not recorded"))

    return run


def parse_answers(text: str) -> dict[str, Result]:
    """Parse commands.json. Raises ValueError."""
    try:
        return to_answers(parse_untrusted_json(text))
    except ValueError as error:
        raise ValueError('{"command": {"rc": 0, "stdout": "…"}}') from error


def to_answers(value: Any) -> dict[str, Result]:
    """Convert JSON values into results by command. Raises ValueError that names the invalid command."""
    if not isinstance(value, dict):
        raise ValueError(f"found {type(value).__name__}, expected an object")  # noqa: TRY004 - as for any wrong value
    return {command: _parse_recorded_answer(command, answer) for command, answer in value.items()}


def _parse_recorded_answer(command: str, answer: Any) -> Result:
    fields = {"stderr": "", **answer} if isinstance(answer, dict) else {}
    if {name: type(value) for name, value in fields.items()} != {"rc": int, "stdout": str, "stderr": str}:
        raise ValueError(f'{command[:80]!r}: expected {{"rc": 0, "stdout": "…", "stderr": "…"}}')
    return Result(**fields)
