"""A server that fails is an error whose first line says why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench import compared_servers

LOG = """\
INFO 11-25 [api_server.py:1] starting
(EngineCore pid=9) ERROR Traceback (most recent call last):
(EngineCore pid=9) ERROR ValueError: Available memory on node 0 (20.45/22.34 GiB) is too little
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."""


def container(status: str, log: str) -> Any:
    return SimpleNamespace(
        status=status,
        labels={"io.drydock.bench": "plain default"},
        attrs={"State": {"ExitCode": 1}},
        logs=lambda **_: log.encode(),
    )


@pytest.mark.parametrize(
    ("status", "log", "first"),
    [
        (
            "exited",
            LOG,
            "plain default: exited with 1: ValueError: Available memory on node 0 (20.45/22.34 GiB) is too little",
        ),
        ("running", "loading\nwarming up", "plain default: no answer after 5 s: warming up"),
        ("exited", "", "plain default: exited with 1: no output"),
    ],
)
def test_the_first_line_is_the_cause(status: str, log: str, first: str) -> None:
    cause_lines = compared_servers.describe_failure(cast("Any", container(status, log)), 5)
    assert cause_lines == (first, *log.splitlines())
