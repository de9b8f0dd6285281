"""Answers of servers are bounded in size and time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from entrypoints.serve import topology_answer
from entrypoints.serve.topology_answer import NoAnswer, ask_server, parse_reply


class Handler(BaseHTTPRequestHandler):
    keys: ClassVar[list[str | None]] = []
    over: ClassVar[threading.Event] = threading.Event()
    """Set once the client has given up: until then an answer is slow, for a minute at most."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.keys.append(self.headers["Authorization"])
        if self.path == "/silent":
            self.over.wait(60)
        if self.path == "/slow-head":
            for letter in b"HTTP/1.1 200 OK" * 80:
                self.wfile.write(bytes([letter]))
                self.over.wait(0.05)
        self.send_response(302 if self.path == "/moved" else 200)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        if self.path == "/drip":
            for _ in range(1200):
                self.wfile.write(b"#")
                self.over.wait(0.05)
        self.wfile.write(b"[]" if self.path == "/list" else b"{" * 10 if self.path == "/deep" else b"x" * 5000)

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.rfile.read(int(self.headers["Content-Length"])))


@pytest.fixture
def address() -> Iterator[str]:
    Handler.over.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    Handler.over.set()
    server.shutdown()


def test_a_question_is_sent_as_json(address: str) -> None:
    assert parse_reply(ask_server(address, {"a": 1})) == {"a": 1}


def test_a_large_answer_is_no_answer(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_answer, "LARGEST", 1000)
    with pytest.raises(NoAnswer, match="an answer of more than 0 MiB"):
        ask_server(f"{address}/metrics")


@pytest.mark.parametrize("path", ["drip", "silent", "slow-head"])
def test_a_slow_answer_is_no_answer(address: str, path: str) -> None:
    begun = time.monotonic()
    with pytest.raises(NoAnswer):
        ask_server(f"{address}/{path}", None, 0.5)
    assert time.monotonic() - begun < 30


def test_a_redirect_is_not_followed(address: str) -> None:
    assert ask_server(f"{address}/moved").status == 302


@pytest.mark.parametrize("path", ["list", "deep", "text"])
def test_other_answers_than_objects_are_no_answers(address: str, path: str) -> None:
    with pytest.raises(NoAnswer, match="no JSON"):
        parse_reply(ask_server(f"{address}/{path}"))


def test_a_closed_port_is_no_answer() -> None:
    with pytest.raises(NoAnswer):
        ask_server("http://127.0.0.1:1/")


def test_the_key_of_the_servers_is_sent_and_proxies_are_not_asked(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    Handler.keys.clear()
    ask_server(f"{address}/list", key="k")
    ask_server(f"{address}/list")

    assert Handler.keys == ["Bearer k", None]
