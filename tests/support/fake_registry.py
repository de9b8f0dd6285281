"""A registry whose answers the test defines, and that records its requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from tests.support.loopback import ThreadedServer


class Seen(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str] = {}
    body: bytes | Iterable[bytes] = b""
    """Bytes, or pieces to send until the client hangs up; then without Content-Length unless a header has it."""


class Fake(ThreadedServer):
    """Calls `answer` for each request and records it in `seen`."""

    def __init__(self, answer: Callable[[Seen], Answer]) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        super().__init__(Handler)
        self.host = f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Fake

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Seen(self.command, self.path, dict(self.headers), body)
        self.server.seen.append(request)
        answer = self.server.answer(request)
        self.send_response(answer.status)
        length = {"Content-Length": str(len(answer.body))} if isinstance(answer.body, bytes) else {}
        for name, value in {**length, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = self.close_connection or not isinstance(answer.body, bytes)
        with contextlib.suppress(OSError):  # the client hung up
            for piece in [answer.body] if isinstance(answer.body, bytes) else answer.body:
                if self.command != "HEAD":
                    self.wfile.write(piece)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - http.server's names

    def log_message(self, *_: Any) -> None:
        """Do not log."""
