"""Runs launch.serve_plan in a process of its own on the stub server, and asks it things.

As a script it is that process: it reads a Start as JSON from its argument and ends as the entrypoint would.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.paths import ROOT
from entrypoints.core.errors import EntrypointError
from entrypoints.core.folders import locate_private_root
from entrypoints.core.records import CachePlan, Entry, Group, Mount, ServePlan
from entrypoints.host.processes import list_titled_processes
from entrypoints.request.arguments import Options
from entrypoints.serve import watch
from entrypoints.serve.launch import serve_plan, warm_caches
from tests.support.sample import KNOWN
from tests.support.sample_facts import facts

STUB = Path(__file__).with_name("stub_vllm.py")
PATIENCE = 15.0
"""Seconds until a test gives up; every wait ends long before on a working machine."""


class Start(NamedTuple):
    """What a test starts."""

    cache: str
    port: int
    flags: tuple[str, ...] = ()
    verb: str = "serve"
    program: str = sys.executable
    cache_writable: bool = True
    tmp_writable: bool = True
    options: Mapping[str, Any] = {}
    plan_env: Mapping[str, str] = {}
    factors: Mapping[str, str] = {}
    """Of the plan, beside its model."""
    profile: Mapping[str, Any] = {}
    blind: str = ""
    """Nobody reads the log: `closed`, a `pipe` without a reader, or one that is `full` and has one."""
    broken: str = ""
    """A function of entrypoints.serve.watch that fails."""
    stall: float = 0.0
    """Of the plan, in seconds; 0 does not look for progress."""
    group: Mapping[str, Any] = {}
    """The fields of the plan's Group."""


class Running:
    """A supervisor with a stub below it."""

    def __init__(self, start: Start, stub: Mapping[str, Any], env: Mapping[str, str], log: Path) -> None:
        self.start = start
        self.log = log
        whole = {**os.environ, "TMPDIR": str(log.parent), "STUB": json.dumps(stub), **env}
        with log.open("w") as stderr:
            command = [sys.executable, "-m", __spec__.name, json.dumps(start._asdict())]
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
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if outcome := holds():
                return outcome
            time.sleep(0.01)
        raise AssertionError(f"waited {PATIENCE:g} s for {what}; said:\n{self.said()}")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs; said:\n{self.said()}") from None

    def stream(self, tokens: int) -> http.client.HTTPResponse:
        """Begin a streamed answer and return it once its first byte is there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.start.port, timeout=PATIENCE)
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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
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


def _cache(start: Start) -> CachePlan:
    """Plan two entries, and a variable in the plan's own."""
    image = {"variant": "cpu-test"}
    factors = {**image, "model": "m", **start.factors}
    name = "-".join(("plan", *start.factors.values()))
    work = start.cache if start.cache_writable else locate_private_root(os.environ, 0)
    return CachePlan(
        volume=start.cache,
        work=work,
        why="" if start.cache_writable else f"{start.cache} cannot be written",
        entries=(Entry("device", image), Entry(name, factors, ("vllm/modelinfos",))),
        folders={"VLLM_CACHE_ROOT": f"{work}/compiled/{name}/vllm"},
    )


def _main() -> int:
    # As __main__.py does, before any thread: SIGTERM would end a process that has a thread in which it is not blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    # Of requests, which an image has not: a handler that waits for standard error at the end.
    atexit.unregister(logging.shutdown)
    start = Start(**json.loads(sys.argv[1]))
    if start.blind == "closed":
        os.close(2)
    if start.broken:
        setattr(watch, start.broken, lambda *_: 1 // 0)
    mounts = {
        "cache": Mount(start.cache, True, start.cache_writable, 0, 0, ""),
        "tmp": Mount("/tmp", True, start.tmp_writable, 0, 0, ""),
    }
    argv = (start.program, str(STUB), "--port", str(start.port), *start.flags)
    cache = _cache(start)
    env = {"VLLM_CACHE_ROOT": cache.folders["VLLM_CACHE_ROOT"], **start.plan_env}
    plan = ServePlan(argv, env, (), (), "/no/such/model", "127.0.0.1", start.port, cache=cache, stall=start.stall)
    if start.group:
        plan = plan._replace(group=Group(**start.group))
    options = Options(**{"status_port": 0, "drain_pause": 0.0, **start.options})
    variables = {"compiling": ["VLLM_"]}
    profile = {"variant": "cpu-test", "stack": "cpu-0", "vllm": "0.0", "variables": variables, "findings": KNOWN}
    profile |= start.profile
    verb = {"serve": serve_plan, "warm": warm_caches}[start.verb]
    try:
        return verb(plan, profile, facts(mounts), dict(os.environ), options)
    except EntrypointError as error:
        sys.stderr.write(f"{error}\n")
        return error.code


if __name__ == "__main__":
    sys.exit(_main())
