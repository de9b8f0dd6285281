"""The middleware in vLLM's server: what it answers while the server serves, leaves and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.core.paths import ROOT
from entrypoints.serve.plugin_files import DRAINING_VARIABLE, DrainFile
from tests.support.patterns import load_file

PATH = ROOT / "entrypoints" / "plugin" / "drydock_plugin" / "draining.py"

Messages = list[dict[str, Any]]
App = Callable[[Any, Any, Any], Awaitable[None]]


@pytest.fixture
def drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DrainFile:
    file = DrainFile({"TMPDIR": str(tmp_path)})
    monkeypatch.setenv(DRAINING_VARIABLE, file.path)
    return file


def answering(status: int, before: Callable[[], None] = lambda: None) -> App:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        before()
        await send({"type": "http.response.start", "status": status, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": b"own"})

    return app


def call(app: App, method: str = "POST", kind: str = "http", parts: int = 1) -> Messages:
    """Return what a client gets from an application behind the middleware."""
    messages: Messages = []
    body = [{"type": "http.request", "body": b"x" * 1000, "more_body": n < parts - 1} for n in range(parts)]

    async def receive() -> dict[str, Any]:
        return body.pop(0)

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    asyncio.run(load_file(PATH).Refusals(app)({"type": kind, "method": method}, receive, send))
    return messages


def status(messages: Messages) -> int:
    return int(messages[0]["status"])


def test_nothing_changes_while_the_server_serves(drain: DrainFile) -> None:
    messages = call(answering(200))
    assert (status(messages), messages[0]["headers"], messages[1]["body"]) == (200, [(b"x", b"y")], b"own")
    assert not Path(drain.path).exists()


def test_without_a_supervisor_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DRAINING_VARIABLE, raising=False)
    assert call(answering(500))[0] == {"type": "http.response.start", "status": 500, "headers": [(b"x", b"y")]}


def test_a_server_that_leaves_answers_and_closes_the_connection(drain: DrainFile) -> None:
    drain.leave()
    messages = call(answering(200))
    assert (status(messages), messages[1]["body"]) == (200, b"own")
    assert (b"connection", b"close") in messages[0]["headers"]


@pytest.mark.parametrize("parts", [1, 5])
def test_a_new_request_is_refused_after_its_body_was_read(drain: DrainFile, parts: int) -> None:
    drain.refuse()
    messages = call(answering(200), parts=parts)
    headers = dict(messages[0]["headers"])
    assert status(messages) == 503
    assert (headers[b"retry-after"], headers[b"connection"]) == (b"1", b"close")
    assert int(headers[b"content-length"]) == len(messages[1]["body"])
    assert len(messages) == 2


def test_health_and_metrics_are_answered_until_the_end(drain: DrainFile) -> None:
    drain.refuse()
    assert status(call(answering(200), method="GET")) == 200


def test_a_request_that_fails_because_the_server_stops_is_refused(drain: DrainFile) -> None:
    messages = call(answering(500, before=drain.refuse))
    assert (status(messages), len(messages)) == (503, 2)


def test_a_request_that_raises_because_the_server_stops_is_refused(drain: DrainFile) -> None:
    async def app(*_: Any) -> None:
        drain.refuse()
        raise RuntimeError("cannot schedule new futures after shutdown")

    assert status(call(app)) == 503


def test_a_failure_that_is_the_servers_own_stays_one(drain: DrainFile) -> None:
    async def app(*_: Any) -> None:
        raise RuntimeError("a defect")

    assert status(call(answering(500))) == 500
    with pytest.raises(RuntimeError, match="a defect"):
        call(app)
    assert not Path(drain.path).exists()


def test_a_websocket_is_told_to_come_back(drain: DrainFile) -> None:
    drain.refuse()
    assert call(answering(200), kind="websocket") == [{"type": "websocket.close", "code": 1013}]
