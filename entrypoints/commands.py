"""Runs the vendor tools that a probe asks, or answers for them from a recorded host. IO."""

from __future__ import annotations

from typing import Any

from entrypoints.host import Host, Result, Run

RECORD = "/commands.json"
"""In a recorded host: `{"tool -flag": {"rc": 0, "stdout": "…", "stderr": "…"}}`."""

NOT_FOUND = 127
TIMED_OUT = 124


class Commands:
    """Runs commands for one host and remembers the answers, for the recorder."""

    def __init__(self, host: Host) -> None:
        self._run: Run = run_live if host.live else recorded(host)
        self.answers: dict[str, Result] = {}

    def run(self, argv: tuple[str, ...], timeout: float) -> Result:
        """Run a command within `timeout` seconds; 127 means that there is no such command, 124 that it hung."""
        result = self._run(argv, timeout)
        self.answers[" ".join(argv)] = result
        return result


def run_live(argv: tuple[str, ...], timeout: float) -> Result:
    """Run a command of this system."""
    import subprocess

    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return Result(NOT_FOUND, "", f"{argv[0]}: not found")
    except subprocess.TimeoutExpired:
        return Result(TIMED_OUT, "", f"{argv[0]}: no answer within {timeout:g} s")
    return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def recorded(host: Host) -> Run:
    """Answer from the host's commands.json; what was not recorded is not found."""
    answers: dict[str, Result] = host.parsed(RECORD, parse_answers, {})

    def run(argv: tuple[str, ...], timeout: float) -> Result:
        del timeout  # an answer that was recorded comes at once
        return answers.get(" ".join(argv), Result(NOT_FOUND, "", f"{argv[0]}: not recorded"))

    return run


def parse_answers(text: str) -> dict[str, Result]:
    """Parse commands.json."""
    import json

    try:
        loaded = json.loads(text)
        return {command: _answer(answer) for command, answer in loaded.items()}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError('{"command": {"rc": 0, "stdout": "…"}}') from error


def _answer(answer: dict[str, Any]) -> Result:
    return Result(int(answer["rc"]), str(answer["stdout"]), str(answer.get("stderr", "")))
