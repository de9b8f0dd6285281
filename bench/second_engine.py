"""A second engine without a network: it runs in an empty network namespace. IO, as root.

In such a namespace the only interface is a loopback that is down: every connection fails, even to this machine. The
engine can still be reached, because its socket is a file. It must run in a namespace: with --bridge=none, an engine
removes the docker0 interface, which would disconnect the containers of the machine's own engine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from drydock.core.errors import EngineError
from drydock.core.files import format_json
from drydock.engine.daemon import SETTINGS, wait_for

CUT = ("unshare", "--net")
PROBE = "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)"


def can_start_second_engine() -> bool:
    """Tell whether this user can make a network namespace, and start an engine in it."""
    return os.geteuid() == 0 and subprocess.run([*CUT, "true"], check=False).returncode == 0


class SecondEngine:
    """The second engine, without images."""

    def __init__(self) -> None:
        """Start it. Raises EngineError with the end of its log, and for a user who cannot."""
        if not can_start_second_engine():
            raise EngineError("only root can make a network namespace and start a second engine", hint="use sudo")
        # Not in TMPDIR, which a benchmark sets: a socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="drydock-cut-", dir="/tmp"))
        (self.folder / "daemon.json").write_text(format_json(SETTINGS))
        options = {"config-file": "daemon.json", "data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        command = [*CUT, "dockerd", *(f"--{name}={self.folder / value}" for name, value in options.items())]
        command += [f"--host={self.host}", "--bridge=none", "--iptables=false", "--ip6tables=false"]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        answers = ["docker", "--host", self.host, "version"]
        if not wait_for(lambda: subprocess.run(answers, capture_output=True, check=False).returncode == 0, 60):
            log_tail = (self.folder / "log").read_text()[-2000:]
            self.stop()
            raise EngineError(f"the second engine did not start in 60 s: {log_tail}")

    @property
    def host(self) -> str:
        """Its address."""
        return f"unix://{self.folder / 'engine.sock'}"

    def run(self, *command: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command without network that uses this engine."""
        environment = {**env, "DOCKER_HOST": self.host}
        return subprocess.run(
            [*CUT, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=900
        )

    def docker(self, *arguments: str) -> str:
        """Return the output of a docker command. Raises EngineError."""
        result = self.run("docker", *arguments, cwd=self.folder, env=os.environ)
        if result.returncode:
            raise EngineError(f"docker {' '.join(arguments)}: exit {result.returncode}: {result.stderr[-2000:]}")
        return result.stdout.strip()

    @contextlib.contextmanager
    def serving_registry(self, port: int, command: Sequence[str]) -> Iterator[None]:
        """Also run a registry's command on the engine's loopback, for the same content and address.

        Raises EngineError if it does not answer within 30 s.
        """
        inside = ("nsenter", f"--net=/proc/{self._process.pid}/ns/net")
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        answers = [*inside, sys.executable, "-c", PROBE.format(port=port)]
        with subprocess.Popen([*inside, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                if not wait_for(lambda: not subprocess.run(answers, capture_output=True, check=False).returncode, 30):
                    raise EngineError(f"{command[0]}: nothing answered on port {port} within 30 s")
                yield
            finally:
                process.kill()

    def stop(self) -> None:
        """Stop the engine by its pid and remove its data."""
        self._process.terminate()
        self._process.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)
