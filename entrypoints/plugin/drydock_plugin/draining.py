"""A middleware of vLLM's server that refuses requests in a way that clients and balancers understand, once it stops.

vLLM 0.32 stops its renderer first and goes on accepting requests, which then fail with 500 "cannot schedule new
futures after shutdown" (v1/engine/async_llm.py). The guard (guard.py), which vLLM loads, passes requests on to it; the
supervisor creates the file that DRYDOCK_DRAINING names (serve/plugin_files.py). Without that variable, nothing changes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

VARIABLE = "DRYDOCK_DRAINING"
SERVING, LEAVING, REFUSING = 0, 1, 2

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

READING = ("GET", "HEAD", "OPTIONS")
"""Methods that start no work: health, metrics and the list of models are answered until the end."""
BODY_AT_MOST = 1 << 20
"""Bytes of a refused request that are read, so that its sender gets the answer instead of a reset connection."""
FAILED, TRY_AGAIN_LATER = 500, 1013
STOPPING = (503, "ServiceUnavailable", "the server is stopping: send the request again")
AGAIN = ((b"retry-after", b"1"), (b"connection", b"close"))
"""Whoever asks again soon reaches another server."""


class Refusals:
    """ASGI middleware: 503 for new requests while the server stops, and for those that fail because it stops."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._path = os.environ.get(VARIABLE, "")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] == "websocket" and self._stage() == REFUSING:
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] not in READING and self._stage() == REFUSING:
            await _drain_body(receive)
            await send_refusal(send, *STOPPING, AGAIN)
        else:
            await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        answer = Answer(send, self._stage)
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            if answer.begun or self._stage() != REFUSING:
                raise
            await send_refusal(send, *STOPPING, AGAIN)

    def _stage(self) -> int:
        if not self._path:
            return SERVING
        try:
            return REFUSING if os.stat(self._path).st_size else LEAVING
        except OSError:
            return SERVING


class Answer:
    """Passes an answer on, with `Connection: close` while the server stops. A failure then becomes a refusal."""

    def __init__(self, send: Send, stage: Callable[[], int]) -> None:
        self._send = send
        self._stage = stage
        self._refused = False
        self.begun = False
        """Whether the client got a part of the answer."""

    async def send(self, message: Message) -> None:
        """Send one part."""
        if message["type"] == "http.response.start":
            stage = self._stage()
            self._refused = stage == REFUSING and message["status"] == FAILED
            self.begun = True
            if stage != SERVING:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            if self._refused:
                await send_refusal(self._send, *STOPPING, AGAIN)
        if not self._refused:
            await self._send(message)


async def send_refusal(
    send: Send, status: int, kind: str, message: str, headers: Iterable[tuple[bytes, bytes]]
) -> None:
    """Answer with an error, in the form of OpenAI's."""
    body = json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()
    response_headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": response_headers})
    await send({"type": "http.response.body", "body": body})


async def _drain_body(receive: Receive) -> None:
    remaining = BODY_AT_MOST
    while remaining > 0:
        message = await receive()
        remaining -= len(message.get("body", b"")) + 1
        if message["type"] != "http.request" or not message.get("more_body"):
            return
