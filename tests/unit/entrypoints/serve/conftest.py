"""A supervisor and the stub as real processes, for each test that asks for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.running_server import Run, Running
from tests.support.supervisor_process import Start


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start a supervisor; keywords are fields of Start, `stub` its misbehaviour, `env` more environment."""
    started: list[Running] = []

    def begin(stub: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, **fields: Any) -> Running:
        start = Start(**{"cache": str(tmp_path / "cache"), "port": free_port(), **fields})
        (tmp_path / "cache").mkdir(exist_ok=True)
        started.append(Running(start, stub or {}, env or {}, tmp_path / f"stderr{len(started)}"))
        return started[-1]

    yield begin
    for running in started:
        running.end()
        # pytest shows it if the test fails
        sys.stdout.write(f"{running.log.name}, exit code {running.process.returncode}:\n{running.said()}\n")
