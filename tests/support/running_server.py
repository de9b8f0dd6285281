"""Runs launch.serve_plan in a process of its own on the stub server, and asks it things."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from drydock.core.paths import ROOT
from entrypoints.host.processes import list_titled_processes
from tests.support import supervisor_process
from tests.support.sample import KNOWN
from tests.support.supervisor_process import Start
from tests.support.waiting import DEADLINE


class Running:
    """A supervisor with a stub below it."""

    def __init__(self, start: Start, stub: Mapping[str, Any], env: Mapping[str, str], log: Path) -> None:
        self.start = start
        self.log = log
        whole = {**os.environ, "TMPDIR": str(log.parent), "STUB": json.dumps(stub), **env}
        fields = start._replace(profile={"findings": KNOWN, **start.profile})._asdict()
        with log.open("w") as stderr:
            # without site, as in an image: no package of a test's environment is in the way, and none can be imported
            command = [sys.executable, "-S", "-m", supervisor_process.__name__, json.dumps(fields)]
            reading, writing = os.pipe()
            if start.blind == "full":
                fill(writing)
            streams = {"": stderr, "closed": stderr, "pipe": writing, "full": writing}
            self.process = subprocess.Popen(
                command, env=whole, cwd=ROOT, stderr=streams[start.blind], start_new_session=True
            )
            os.close(writing)
            self.reading = os.fdopen(reading, "rb")
            if start.blind != "full":
                self.reading.close()

    def said(self) -> str:
        return self.log.read_text()

    def status_port(self) -> int:
        ports = self.until(lambda: re.findall(r"status on port (\d+)", self.said()), "the status port")
        return int(ports[-1])

    def leader(self) -> int:
        match = self.until(lambda: re.search(r"vLLM is process (\d+)", self.said()), "vLLM's pid")
        return int(match[1])

    def engine(self) -> int:
        """Return the pid of the stub's engine core."""
        return int(self.until(lambda: next(iter(list_titled_processes(self.leader())), 0), "the engine core"))

    def status(self, path: str) -> tuple[int, Any]:
        """Ask the status port. Raises AssertionError with the log if it does not answer."""
        try:
            return get(self.status_port(), path)
        except (OSError, http.client.HTTPException) as error:
            code = self.process.poll()
            raise AssertionError(f"{path}: {error!r}, exit code {code}; said:\n{self.said()}") from error

    def until_ready(self) -> None:
        self.until(lambda: self.status("/readyz")[0] == 200, "ready")

    def until(self, holds: Any, what: str) -> Any:
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            if outcome := holds():
                return outcome
            time.sleep(0.02)
        raise AssertionError(f"waited {DEADLINE:g} s for {what}; said:\n{self.said()}")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs; said:\n{self.said()}") from None

    def stream(self, tokens: int) -> http.client.HTTPResponse:
        """Begin a streamed answer and return it once its first byte is there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.start.port, timeout=DEADLINE)
        question = {"model": "stub", "prompt": "x", "stream": True, "max_tokens": tokens}
        connection.request("POST", "/v1/completions", json.dumps(question))
        return connection.getresponse()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self._left_behind():
            os.killpg(pid, signal.SIGKILL)
        self.reading.close()

    def _left_behind(self) -> Iterable[int]:
        """A supervisor that was killed leaves its session's leader."""
        pids = re.findall(r"vLLM is process (\d+)", self.said())
        return [int(pid) for pid in pids if is_running(int(pid))]


Run = Callable[..., Running]
"""Starts a supervisor: keywords are fields of Start, `stub` its misbehaviour, `env` more environment."""


def get(port: int, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
    finally:
        connection.close()
    kind = response.headers["Content-Type"]
    return response.status, json.loads(body) if kind == "application/json" else body


def fill(pipe: int) -> None:
    """Write to a pipe until nothing more fits."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    os.set_blocking(pipe, True)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
