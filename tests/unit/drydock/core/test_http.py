"""Redirects between servers that exist only here."""

from __future__ import annotations

import datetime as dt
import email.utils
import io
import socket
import ssl
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import urllib3
from requests.adapters import BaseAdapter

from drydock.core import http
from drydock.core.errors import FetchError
from drydock.core.http import Session, TransientRequestError, explain_request_error, parse_origin

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
    ("target", "keeps_password"),
    [
        ("https://stranger.example/b", False),
        ("https://own.example:8443/b", False),
        ("http://own.example:443/b", False),
        ("https://own.example/b", True),
        ("https://own.example:443/b", True),
    ],
)
def test_a_redirect_gets_a_password_only_of_its_own_origin(
    target: str, keeps_password: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert servers.passwords[1] == (servers.passwords[0] if keeps_password else None)


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
    assert parse_origin(url) == expected


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
    assert explain_request_error(caught.value) == words


def answer(status: int, **headers: str) -> requests.Response:
    response = requests.Response()
    response.status_code, response.reason = status, ""
    response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return response


@pytest.mark.parametrize("status", [429, 503, 509])
def test_a_status_that_may_pass_has_the_time_that_the_server_asks_for(status: int) -> None:
    later = email.utils.format_datetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30), usegmt=True)
    for value, least, most in (("7", 7, 7), (later, 28, 30), (later.replace("GMT", "-0000"), 28, 30)):
        with pytest.raises(TransientRequestError, match=f"^the server answered {status}$") as caught:
            http.refuse_transient_status(answer(status, Retry_After=value))
        assert least <= (caught.value.pause or 0) <= most
    http.refuse_transient_status(answer(404))
    http.refuse_transient_status(answer(501))


@pytest.mark.parametrize(
    ("retry_after", "least", "most"), [(None, 2, 4), (0.0, 2, 4), (15.0, 15, 15), (300.0, http.LONGEST_PAUSE, 60)]
)
def test_the_pause_is_the_servers_or_grows(retry_after: float | None, least: float, most: float) -> None:
    pauses: list[float] = []
    http.pause_before_retry(3, TransientRequestError("busy", retry_after), 1.0, "r.example", pauses.append)
    assert least <= pauses[0] <= most


def test_a_server_that_asks_for_a_day_is_not_asked_again_each_minute() -> None:
    pauses: list[float] = []
    with pytest.raises(FetchError, match=r"r\.example: busy, and asks to wait 86400 s \(Retry-After\)"):
        http.pause_before_retry(1, TransientRequestError("busy", 86_400.0), 1.0, "r.example", pauses.append)
    assert pauses == []


def test_a_redirect_in_a_circle_is_named() -> None:
    text = http.explain_request_error(requests.exceptions.TooManyRedirects("Exceeded 30 redirects."))
    assert text == "it redirects more than 30 times, perhaps in a circle"


def test_an_answer_that_is_not_compressed_as_it_says_is_named() -> None:
    error = requests.ConnectionError(urllib3.exceptions.DecodeError("gzip", zlib.error("incorrect header")))
    assert explain_request_error(error) == "the answer is not compressed as its Content-Encoding says"


def test_only_what_may_pass_is_asked_again() -> None:
    distrusted = requests.exceptions.SSLError(ssl.SSLCertVerificationError("self-signed"))
    for error in (distrusted, requests.exceptions.InvalidSchema("ftp")):
        with pytest.raises(FetchError, match=r"^page: "), http.failures_named("page"):
            raise error
    with pytest.raises(TransientRequestError, match="refused"), http.failures_named("page"):
        raise requests.ConnectionError(ConnectionRefusedError())


@pytest.mark.parametrize(
    ("url", "cause", "expected"),
    [
        ("http://127.0.0.1:9/v2/", ConnectionRefusedError(), True),
        ("http://localhost:9/v2/", ConnectionRefusedError(), True),
        ("https://r.example/v2/", ConnectionRefusedError(), False),
        ("http://127.0.0.1:9/v2/", TimeoutError(), False),
    ],
)
def test_only_this_machine_knows_that_nothing_listens(url: str, cause: OSError, expected: bool) -> None:
    error = requests.ConnectionError(cause, request=requests.Request("GET", url).prepare())
    assert http.make_transient_error(error).is_refused_here is expected
