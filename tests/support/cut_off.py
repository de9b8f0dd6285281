"""A machine without a network: an engine with a data root of its own, and commands, all in empty network namespaces.

In such a namespace there is no interface but a loopback that is down: every connect fails, even one to this machine.
The engine's socket is a file, and so is reached all the same. Nor may it be outside of one: an engine that is told
--bridge=none removes the machine's docker0, and so takes the network of another engine's containers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from drydock.core.files import dumps
from drydock.engine.daemon import SETTINGS, wait_for
from tests.support.servers import Registry

CUT = ("unshare", "--net")
PROBE = "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)"
PYTHON = ("/usr/bin/python3", "-I")
HEALTH = (*PYTHON, "-S", "/opt/drydock/entrypoints", "health")
ASK = """
import json, sys, urllib.request
said = {"model": "smollm2", "messages": [{"role": "user", "content": sys.argv[1]}], "temperature": 0, "max_tokens": 32}
where, kind = "http://127.0.0.1:8000/v1/chat/completions", {"Content-Type": "application/json"}
with urllib.request.urlopen(urllib.request.Request(where, json.dumps(said).encode(), kind), timeout=120) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
"""
"""A request from inside a container: those of such an engine have no network, and so no port outside."""


class CutOff:
    """The second engine, which holds no image; skips the test where namespaces may not be made."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="drydock-cut-"))  # short: sockets' paths have 107 bytes at most
        if os.geteuid() != 0 or subprocess.run([*CUT, "true"], check=False).returncode:
            pytest.skip("only root can make a network namespace and start a second engine")
        (self.folder / "daemon.json").write_text(dumps(SETTINGS))
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

    def docker(self, *arguments: str) -> str:
        """Return what a docker command prints."""
        done = self.run("docker", *arguments, cwd=self.folder, env=os.environ)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    @contextlib.contextmanager
    def beside(self, registry: Registry) -> Iterator[None]:
        """Serve what a registry holds on the engine's own loopback too, under the same address: all that it reaches."""
        inside = ("nsenter", f"--net=/proc/{self._process.pid}/ns/net")
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        answers = [*inside, sys.executable, "-c", PROBE.format(port=registry.port)]
        with subprocess.Popen([*inside, *registry.command], stderr=subprocess.DEVNULL) as process:
            try:
                assert wait_for(lambda: not subprocess.run(answers, capture_output=True, check=False).returncode, 30)
                yield
            finally:
                process.kill()

    @contextlib.contextmanager
    def serving(self, image: str, model: Path) -> Iterator[str]:
        """Serve a model in a container without any network; yield the container's id when it is ready."""
        serve = ("serve", "--model", "/models/smollm2", "--served-model-name", "smollm2")
        folder = f"--volume={model}:/models/smollm2:ro"
        container = self.docker(
            "run", "--detach", "--network=none", "--read-only", "--tmpfs=/tmp", folder, image, *serve
        )
        try:
            ready = wait_for(lambda: self._ends_well(container, *HEALTH) or not self._runs(container), 300)
            assert ready, self.docker("logs", "--tail=20", container)
            assert self._runs(container), self.run("docker", "logs", container, cwd=model, env=os.environ).stderr[
                -3000:
            ]
            yield container
        finally:
            self.docker("rm", "--force", "--volumes", container)

    def ask(self, container: str, question: str) -> str:
        """Return the greedy answer of what `serving` serves."""
        return self.docker("exec", container, *PYTHON, "-c", ASK, question)

    def _ends_well(self, container: str, *command: str) -> bool:
        done = self.run("docker", "exec", container, *command, cwd=self.folder, env=os.environ)
        return done.returncode == 0

    def _runs(self, container: str) -> bool:
        return self.docker("inspect", "--format={{.State.Running}}", container) == "true"

    def stop(self) -> None:
        """End it by its pid, and remove its images."""
        self._process.terminate()
        self._process.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)
