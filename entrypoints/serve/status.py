"""Answers /livez, /readyz, /startupz, /metrics and /group on the status port while vLLM starts and serves. IO.

`answer_path` is pure. The server uses asyncio streams because http.server limits neither a client's total time nor its
head: 64 clients that send a byte at a time kept every probe out. Here a client gets 4 KiB and 5 seconds, and when 64
are connected the oldest is dropped.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from entrypoints.serve.phases import (
    READY,
    State,
    get_phase,
    is_alive,
    is_ready,
    measure_phases,
    startup_seconds,
    why_not,
)
from entrypoints.serve.ports import CLIENTS_AT_MOST

if TYPE_CHECKING:
    from socket import socket

HEAD_AT_MOST = 4096
"""Bytes of a request's head."""
GROUP = "/group"
CLIENT_SECONDS = 5.0
"""From connecting to the whole answer being taken."""

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    503: "Service Unavailable",
}
_REQUEST_LINE = ("method", "path", "version")
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


class Response(NamedTuple):
    """An answer, not yet written as HTTP."""

    status: int
    body: str
    kind: str = _JSON


def answer_path(path: str, state: State, info: Mapping[str, str], now: float) -> Response:
    """Answer one path. `now` is in seconds since the process began; `info` holds the labels of drydock_info."""
    if path == "/livez":  # this process ends with vLLM, so it answers only while vLLM runs
        return Response(200 if is_alive(state) else 503, _format_object(alive=is_alive(state), reason=state.stalled))
    if path == "/readyz":
        return _answer_readiness(state)
    if path == "/startupz":
        started = get_phase(state) == READY
        durations = {name: round(took, 3) for name, took in measure_phases(state, now).items()}
        return Response(
            200 if started else 503, _format_object(started=started, phase=get_phase(state), seconds=durations)
        )
    if path == "/metrics":
        return Response(200, format_metrics(state, info, now), _TEXT)
    return Response(404, _format_object(error=f"{path}: expected /livez, /readyz, /startupz, /metrics or /group"))


def format_metrics(state: State, info: Mapping[str, str], now: float) -> str:
    """Format the start as Prometheus metrics."""
    labels = ",".join(f'{name}="{_escape_label(value)}"' for name, value in info.items())
    phases = [(f'{{phase="{name}"}}', f"{took:.3f}") for name, took in measure_phases(state, now).items()]
    blocks = (
        ("startup_phase_seconds", "Seconds of each phase of the start; the current one so far.", phases),
        (
            "startup_seconds",
            "Seconds until ready for the first time, else so far.",
            [("", f"{startup_seconds(state, now):.3f}")],
        ),
        ("ready", "1 if the server is ready for requests.", [("", str(int(is_ready(state))))]),
        ("alive", "0 if vLLM makes no progress and should be restarted.", [("", str(int(is_alive(state))))]),
        ("stalled", "1 if vLLM makes no progress now.", [("", str(int(bool(state.stalled))))]),
        ("wrong_answer", "1 if the known answer was wrong.", [("", str(int(bool(state.wrong))))]),
        ("kv_expired_requests", "Requests whose KV cache expired.", [("", f"{state.expired:g}")]),
        ("info", "Labels of this image.", [(f"{{{labels}}}", "1")]),
    )
    return "".join(_format_metric_family(*block) for block in blocks)


def _answer_readiness(state: State) -> Response:
    fields = {"ready": is_ready(state), "phase": get_phase(state), "reason": why_not(state), "wrong": bool(state.wrong)}
    return Response(200 if is_ready(state) else 503, _format_object(**fields, known_answer=list(state.notes)))


def _format_metric_family(name: str, text: str, samples: list[tuple[str, str]]) -> str:
    lines = [f"# HELP drydock_{name} {text}", f"# TYPE drydock_{name} gauge"]
    lines += [f"drydock_{name}{labels} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def format_answer_body(value: Mapping[str, Any]) -> str:
    """Write an answer's body."""
    return json.dumps(value, ensure_ascii=False) + "\n"


def _format_object(**fields: Any) -> str:
    return format_answer_body(fields)


Take = Callable[[str, str], Response]
"""Takes a query of POST /group, and the address that it came from."""


class StatusServer:
    """Serves `answer(path)` and, if given, `take` on a listening socket; each client gets `patience` seconds in all."""

    def __init__(
        self,
        listener: socket,
        answer: Callable[[str], Response],
        patience: float = CLIENT_SECONDS,
        take: Take | None = None,
    ) -> None:
        self._listener = listener
        self._answer = answer
        self._take = take
        self._patience = patience
        self._clients: dict[asyncio.Task[None], None] = {}
        """The connected clients, oldest first."""
        self._stopped: Future[None] = Future()

    def run(self) -> None:
        """Serve until `stop`, or else until the process ends; meant for a daemon thread."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """Close the listener; clients that are connected get their answers. Meant for another thread than `run`."""
        self._stopped.set_result(None)

    async def _run(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener, limit=HEAD_AT_MOST)
        await asyncio.wrap_future(self._stopped)
        server.close()
        if self._clients:
            await asyncio.wait(self._clients)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client within its time; drop the oldest one if there are too many."""
        if len(self._clients) >= CLIENTS_AT_MOST:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.cancel()
        client = asyncio.ensure_future(self._serve(reader, writer))
        self._clients[client] = None
        try:
            await asyncio.wait_for(client, self._patience)
        except (asyncio.CancelledError, asyncio.TimeoutError, OSError):  # noqa: UP041 -- its own class in Python 3.10
            writer.transport.abort()
        finally:
            self._clients.pop(client, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request's head, write the response, and close the connection."""
        head = b""
        while not (b"\r\n\r\n" in head or b"\n\n" in head):
            if len(head) == HEAD_AT_MOST:
                head = b""  # is answered with 400
                break
            received = await reader.read(HEAD_AT_MOST - len(head))
            if not received:
                raise ConnectionAbortedError  # closed before its request was complete
            head += received
        peer = writer.get_extra_info("peername") or ("",)
        writer.write(_answer_http(head, self._answer, self._take, str(peer[0]).removeprefix("::ffff:")))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def _answer_http(head: bytes, answer: Callable[[str], Response], take: Take | None, address: str) -> bytes:
    """Return the HTTP/1.1 response to a request's head; anything else than a request gets 400."""
    words = head.split(b"\n", 1)[0].decode("latin-1").split()
    if len(words) != len(_REQUEST_LINE) or not words[2].startswith("HTTP/1."):
        response = Response(400, _format_object(error="expected an HTTP/1 request"))
    elif take and words[0] == "POST" and words[1].partition("?")[0] == GROUP:
        try:
            response = take(words[1].partition("?")[2], address)
        except Exception as error:  # noqa: BLE001 -- one bad query must not fill the log with tracebacks
            response = Response(400, _format_object(error=f"{GROUP}: {type(error).__name__}: {error}"))
    elif words[0] not in ("GET", "HEAD"):
        response = Response(405, _format_object(error=f"{words[0]}: expected GET"))
    else:
        response = answer(words[1].partition("?")[0])
    body = response.body.encode()
    lines = (
        f"HTTP/1.1 {response.status} {_PHRASES[response.status]}",
        f"Content-Type: {response.kind}",
        f"Content-Length: {len(body)}",
        time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        "Cache-Control: no-store",
        "Connection: close",
    )
    sent_body = b"" if words[:1] == ["HEAD"] else body
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + sent_body
