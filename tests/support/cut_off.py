"""A machine without a network: a second engine and commands, each in an empty network namespace.

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
from typing import Any

import pytest
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HealthcheckWaitStrategy

from drydock.core.files import format_json
from drydock.engine.daemon import SETTINGS, wait_for
from tests.support.started_containers import make_container

CUT = ("unshare", "--net")
PROBE = "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)"
PYTHON = ("/usr/bin/python3", "-I")
ASK = """
import json, sys, urllib.request
body = {"model": "smollm2", "messages": [{"role": "user", "content": sys.argv[1]}], "temperature": 0, "max_tokens": 32}
url, headers = "http://127.0.0.1:8000/v1/chat/completions", {"Content-Type": "application/json"}
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=120) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
"""
"""Sends a request from inside a container: this engine's containers have no network and no published ports."""


class CutOff:
    """The second engine, without images; skips the test if namespaces cannot be created."""

    def __init__(self) -> None:
        # Not in TMPDIR, which a benchmark sets: a socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="drydock-cut-", dir="/tmp"))
        if os.geteuid() != 0 or subprocess.run([*CUT, "true"], check=False).returncode:
            pytest.skip("only root can make a network namespace and start a second engine")
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
            raise TimeoutError(log_tail)

    @property
    def host(self) -> str:
        return f"unix://{self.folder / 'engine.sock'}"

    def run(self, *command: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command without network that uses this engine."""
        environment = {**env, "DOCKER_HOST": self.host}
        return subprocess.run(
            [*CUT, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=900
        )

    def docker(self, *arguments: str) -> str:
        """Return the output of a docker command."""
        result = self.run("docker", *arguments, cwd=self.folder, env=os.environ)
        assert result.returncode == 0, result.stderr[-2000:]
        return result.stdout.strip()

    @contextlib.contextmanager
    def serving_registry(self, port: int, command: Sequence[str]) -> Iterator[None]:
        """Also run a registry's command on the engine's loopback, for the same content and address."""
        inside = ("nsenter", f"--net=/proc/{self._process.pid}/ns/net")
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        answers = [*inside, sys.executable, "-c", PROBE.format(port=port)]
        with subprocess.Popen([*inside, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                assert wait_for(lambda: not subprocess.run(answers, capture_output=True, check=False).returncode, 30)
                yield
            finally:
                process.kill()

    @contextlib.contextmanager
    def serving(self, image: str, model: Path) -> Iterator[DockerContainer]:
        """Serve a model in a container without network; yield the container once it is healthy."""
        words = ("serve", "--model", "/models/smollm2", "--served-model-name", "smollm2")
        engine = {"environment": {"DOCKER_HOST": self.host}, "timeout": 300}
        options: dict[str, Any] = {"network_mode": "none", "read_only": True, "volumes": [(model, "/models/smollm2")]}
        with make_container(image, *words, tmpfs=("/tmp",), docker_client_kw=engine, **options) as container:
            try:
                HealthcheckWaitStrategy().with_startup_timeout(300).wait_until_ready(container)
            except (RuntimeError, TimeoutError) as error:
                raise AssertionError(container.get_logs()[1].decode()[-3000:]) from error
            yield container

    def ask(self, container: DockerContainer, question: str) -> str:
        """Return the greedy answer of a container started by `serving`."""
        return container.exec([*PYTHON, "-c", ASK, question]).output.decode()

    def stop(self) -> None:
        """Stop the engine by its pid and remove its data."""
        self._process.terminate()
        self._process.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)
