"""A machine without a network: an engine with a data root of its own, and commands, all in empty network namespaces.

In such a namespace there is no interface but a loopback that is down: every connect fails, even one to this machine.
The engine's socket is a file, and so is reached all the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from drydock.engine import SNAPSHOTTER, wait_for
from drydock.files import dumps

CUT = ("unshare", "--net")
PROBE = "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)"


class CutOff:
    """The second engine; skips the test where namespaces may not be made."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="drydock-cut-"))  # short: sockets' paths have 107 bytes at most
        if os.geteuid() != 0 or subprocess.run([*CUT, "true"], check=False).returncode:
            pytest.skip("only root can make a network namespace and start a second engine")
        (self.folder / "daemon.json").write_text(dumps(SNAPSHOTTER))
        options = {"config-file": "daemon.json", "data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        command = [*CUT, "dockerd", *(f"--{name}={self.folder / value}" for name, value in options.items())]
        command += [f"--host={self.host}", "--bridge=none", "--iptables=false", "--ip6tables=false"]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        answers = ["docker", "--host", self.host, "version"]
        if not wait_for(lambda: subprocess.run(answers, capture_output=True, check=False).returncode == 0, 60):
            self.stop()
            raise TimeoutError((self.folder / "log").read_text()[-2000:])

    @property
    def host(self) -> str:
        return f"unix://{self.folder / 'engine.sock'}"

    def run(self, *command: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command without network, with this engine."""
        environment = {**env, "DOCKER_HOST": self.host}
        return subprocess.run(
            [*CUT, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=900
        )

    def stop(self) -> None:
        """End it by its pid, and remove its images."""
        self._process.terminate()
        self._process.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)
