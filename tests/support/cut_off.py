"""A machine without a network: a second engine, and containers that are asked from inside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HealthcheckWaitStrategy

from bench.second_engine import SecondEngine, can_start_second_engine
from tests.support.started_containers import make_container

PYTHON = ("/usr/bin/python3", "-I")
ASK = """
import json, sys, urllib.request
body = {"model": "smollm2", "messages": [{"role": "user", "content": sys.argv[1]}], "temperature": 0, "max_tokens": 32}
url, headers = "http://127.0.0.1:8000/v1/chat/completions", {"Content-Type": "application/json"}
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=120) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
"""
"""Sends a request from inside a container: this engine's containers have no network and no published ports."""


def skip_without_second_engine() -> None:
    if not can_start_second_engine():
        pytest.skip("only root can make a network namespace and start a second engine")


class CutOff(SecondEngine):
    """The second engine, without images; skips the test if namespaces cannot be created."""

    def __init__(self) -> None:
        skip_without_second_engine()
        super().__init__()

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
