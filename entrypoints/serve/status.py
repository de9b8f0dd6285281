"""Answers /livez, /readyz, /startupz and /metrics on the status port while vLLM comes up, serves and goes. IO.

`respond` is pure. The server is a selector loop of its own, since http.server costs 30 ms more and bounds nothing:
here a client may hold 4 KiB and 5 seconds, and when 64 are connected the oldest gives way, so that probes get through.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from entrypoints.serve.phases import READY, State, is_ready, phase, seconds, startup_seconds, why_not
from entrypoints.serve.ports import CLIENTS_AT_MOST

HEAD_AT_MOST = 4096
"""Bytes of a request's head."""
CLIENT_SECONDS = 5.0
"""From connecting to the whole answer being taken."""

_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


class Response(NamedTuple):
    """An answer before it is written as HTTP."""

    status: int
    body: str
    kind: str = _JSON


def respond(path: str, state: State, info: Mapping[str, str], now: float) -> Response:
    """Answer one path. `now` is in seconds since the process began; `info` holds the labels of drydock_info."""
    if path == "/livez":  # whoever answers is alive, and ends when vLLM does
        return Response(200, _object(alive=True))
    if path == "/readyz":
        return _readiness(state)
    if path == "/startupz":
        started = phase(state) == READY
        told = {name: round(took, 3) for name, took in seconds(state, now).items()}
        return Response(200 if started else 503, _object(started=started, phase=phase(state), seconds=told))
    if path == "/metrics":
        return Response(200, metrics(state, info, now), _TEXT)
    return Response(404, _object(error=f"{path}: expected /livez, /readyz, /startupz or /metrics"))


def metrics(state: State, info: Mapping[str, str], now: float) -> str:
    """Write the start as Prometheus metrics."""
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in info.items())
    phases = [(f'{{phase="{name}"}}', f"{took:.3f}") for name, took in seconds(state, now).items()]
    blocks = (
        ("startup_phase_seconds", "Seconds that each phase of the start took, the running one so far.", phases),
        (
            "startup_seconds",
            "Seconds until ready for the first time, or so far.",
            [("", f"{startup_seconds(state, now):.3f}")],
        ),
        ("ready", "1 when requests may come.", [("", str(int(is_ready(state))))]),
        ("wrong_answer", "1 when the known answer was wrong.", [("", str(int(bool(state.wrong))))]),
        ("info", "What this image is.", [(f"{{{labels}}}", "1")]),
    )
    return "".join(_family(*block) for block in blocks)


def _readiness(state: State) -> Response:
    told = {"ready": is_ready(state), "phase": phase(state), "reason": why_not(state), "wrong": bool(state.wrong)}
    return Response(200 if is_ready(state) else 503, _object(**told, known_answer=list(state.notes)))


def _family(name: str, text: str, samples: list[tuple[str, str]]) -> str:
    lines = [f"# HELP drydock_{name} {text}", f"# TYPE drydock_{name} gauge"]
    lines += [f"drydock_{name}{labels} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _object(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"


class _Client:
    """One connection: what it sent so far, what it has still to take, and until when."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.received = b""
        self.outgoing = b""


class StatusServer:
    """Serves `answer(path)` on a listening socket; a client is given `patience` seconds."""

    def __init__(
        self, listener: socket.socket, answer: Callable[[str], Response], patience: float = CLIENT_SECONDS
    ) -> None:
        self._listener = socket.socket(fileno=listener.detach())
        self._listener.setblocking(False)
        self._answer = answer
        self._patience = patience
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, _Client] = {}
        """By file descriptor, oldest first."""
        self._selector.register(self._listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve for ever; meant for a daemon thread."""
        while True:
            for key, _ in self._selector.select(self._wait()):
                client = self._clients.get(key.fd)
                with contextlib.suppress(BlockingIOError, InterruptedError):
                    if client is None:
                        self._accept()
                    else:
                        self._serve(client)
            self._drop_the_late()

    def _wait(self) -> float | None:
        oldest = next(iter(self._clients.values()), None)
        return max(0.0, oldest.deadline - time.monotonic()) if oldest else None

    def _drop_the_late(self) -> None:
        now = time.monotonic()
        for client in [client for client in self._clients.values() if client.deadline <= now]:
            self._drop(client)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            return
        connection.setblocking(False)
        if len(self._clients) >= CLIENTS_AT_MOST:
            self._make_room()
        self._clients[connection.fileno()] = _Client(connection, time.monotonic() + self._patience)
        self._selector.register(connection, selectors.EVENT_READ)

    def _make_room(self) -> None:
        """Let the oldest client give way; without any, wait until another part of the process frees a descriptor."""
        if self._clients:
            self._drop(next(iter(self._clients.values())))
        else:
            time.sleep(0.1)

    def _serve(self, client: _Client) -> None:
        try:
            if client.outgoing or self._read(client):
                self._write(client)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> bool:
        """Take what came; return whether there is an answer to write."""
        came = client.connection.recv(HEAD_AT_MOST)
        client.received += came
        whole = b"\r\n\r\n" in client.received or b"\n\n" in client.received
        if whole or len(client.received) >= HEAD_AT_MOST:
            client.outgoing = _http(client.received if whole else b"", self._answer)
            self._selector.modify(client.connection, selectors.EVENT_WRITE)
        elif not came:
            self._drop(client)
        return bool(client.outgoing)

    def _write(self, client: _Client) -> None:
        client.outgoing = client.outgoing[client.connection.send(client.outgoing) :]
        if not client.outgoing:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.connection.fileno(), None)
        self._selector.unregister(client.connection)
        client.connection.close()


def _http(head: bytes, answer: Callable[[str], Response]) -> bytes:
    """Answer one request head in HTTP/1.1 bytes; what is no request gets 400."""
    words = head.split(b"\n", 1)[0].decode("latin-1").split()
    form = 3
    if len(words) != form or not words[2].startswith("HTTP/1."):
        response = Response(400, _object(error="expected an HTTP/1 request"))
    elif words[0] not in ("GET", "HEAD"):
        response = Response(405, _object(error=f"{words[0]}: expected GET"))
    else:
        response = answer(words[1].partition("?")[0])
    body = response.body.encode()
    lines = (
        f"HTTP/1.1 {response.status} {_PHRASES[response.status]}",
        f"Content-Type: {response.kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
    )
    sent = b"" if words[:1] == ["HEAD"] else body
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + sent
