"""Redirects between servers that exist only here."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from requests.adapters import BaseAdapter

from drydock.core.http import Session, origin, reason

if TYPE_CHECKING:
    from tests.support.loopback import Loopback


class Servers(BaseAdapter):
    """Answers each URL with a redirect to the next one, and the last with 200."""

    def __init__(self, *urls: str) -> None:
        super().__init__()
        self.urls = urls
        self.passwords: list[str | None] = []

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        response = requests.Response()
        response.url, response.request = str(request.url), request
        response.raw = io.BytesIO()
        response._content = b""
        self.passwords.append(request.headers.get("Authorization"))
        following = self.urls[self.urls.index(response.url) + 1 :]
        response.status_code = 302 if following else 200
        if following:
            response.headers["Location"] = following[0]
        return response

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("https://stranger.example/b", False),
        ("https://own.example:8443/b", False),
        ("http://own.example:443/b", False),
        ("https://own.example/b", True),
        ("https://own.example:443/b", True),
    ],
)
def test_a_redirect_gets_a_password_only_of_its_own_origin(
    target: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (f"machine {host} login user password netrc\n" for host in ("stranger.example", "own.example"))
    (tmp_path / "netrc").write_text("".join(lines))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    servers = Servers("https://own.example/a", target)
    with Session() as session:
        session.mount("http://", servers)
        session.mount("https://", servers)
        session.get("https://own.example/a", auth=("user", "own"))
    assert servers.passwords[0] is not None
    assert servers.passwords[1] == (servers.passwords[0] if kept else None)


def test_a_password_does_not_come_back_after_a_foreign_redirect() -> None:
    servers = Servers("https://own.example/a", "https://stranger.example/b", "https://own.example/c")
    with Session() as session:
        session.mount("https://", servers)
        session.get("https://own.example/a", auth=("user", "own"))
    assert [password is not None for password in servers.passwords] == [True, False, False]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://u:p@Index.Example/simple", "https://index.example:443"),
        ("http://127.0.0.1:8080/a", "http://127.0.0.1:8080"),
        ("http://127.0.0.1", "http://127.0.0.1:80"),
        ("file:///a", "file://:"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, expected: str) -> None:
    assert origin(url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/", "the connection was refused"),
        ("https://{server}/", "the server does not speak TLS as expected"),
        ("http://{silent}/", "no answer in time"),
    ],
)
def test_why_a_request_failed_is_said_in_plain_words(url: str, words: str, server: Loopback) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = {"server": server.url.removeprefix("http://"), "silent": f"127.0.0.1:{silent.getsockname()[1]}"}
        session = Session()
        session.trust_env = False
        with pytest.raises(requests.RequestException) as caught:
            session.get(url.format(**addresses), timeout=0.5)
    assert reason(caught.value) == words
