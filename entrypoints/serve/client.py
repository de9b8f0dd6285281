"""Client of vLLM's server, wherever its flags make it listen: address, TLS, Unix socket, API key. IO.

`parse_endpoint` is pure. http.client takes 30 ms to import, so functions import it after vLLM was started.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from entrypoints.request.flags import API_KEY, API_KEY_VARIABLE, CERTIFICATE, SOCKET

if TYPE_CHECKING:
    import http.client

ANSWER_AT_MOST = 16 * 1024 * 1024
"""Largest response in bytes."""


class Endpoint(NamedTuple):
    """Where vLLM's own server listens, as seen from inside the container."""

    host: str
    port: int
    tls: bool = False
    socket: str = ""
    """Path of a Unix socket, used instead of host and port."""
    key: str = ""
    engine: int | None = None
    """The data-parallel engine that answers; None leaves the choice to vLLM."""
    connect_seconds: float | None = None
    """Seconds for a connection; None for as many as for the answer."""
    has_request_ids: bool = True
    """Whether requests have an id of ours, which the server's log shows. A router of prefill and decode servers gives
    ids itself, and some connectors read addresses from them (vllm-router, vllm_pd_router.rs)."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.socket or f"http{'s' if self.tls else ''}://{host}:{self.port}"


class Reply(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes
    date: str = ""
    """The header Date."""

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode(errors="replace")


class Unreachable(Exception):  # noqa: N818 -- a state of the server, not an error here
    """The server gave no HTTP response; the text says which and why, `reason` only why."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text


def parse_endpoint(argv: Sequence[str], host: str, port: int, env: Mapping[str, str]) -> Endpoint:
    """Return where vLLM listens, according to its flags and environment. Pure."""
    wildcard = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- read here, not bound
    return Endpoint(
        host=wildcard.get(host, host),
        port=port,
        tls=bool(find_flag_value(argv, CERTIFICATE)),
        socket=find_flag_value(argv, SOCKET),
        key=find_flag_value(argv, API_KEY) or first_key(env),
    )


def first_key(env: Mapping[str, str]) -> str:
    """Return the first of the server's keys, which are one a line; empty if it has none. Pure."""
    return env.get(API_KEY_VARIABLE, "").strip().partition("\n")[0].strip()


def parse_url(url: str) -> tuple[Endpoint, str]:
    """Return the endpoint and the path of a URL. Raises ValueError that says what it expected. Pure."""
    from urllib.parse import urlsplit

    message = f"--url {url.rpartition('@')[2]!r}: expected http://HOST:PORT/PATH, without a user, a password or spaces"
    try:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        port = (443 if tls else 80) if parts.port is None else parts.port
    except ValueError as error:  # a port that is no number, brackets around what is no address
        raise ValueError(message) from error
    strange = "@" in parts.netloc or " " in url or not url.isprintable()
    if strange or not port or not parts.hostname or parts.scheme not in ("http", "https"):
        raise ValueError(message)
    return Endpoint(parts.hostname, port, tls), parts.path or "/"


def find_flag_value(argv: Sequence[str], name: str) -> str:
    """Return a flag's last value, in either form (`--a b`, `--a=b`, underscores as dashes); empty if absent."""
    last_value = ""
    for token, following in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        spelled, equals, value = token.partition("=")
        if spelled.startswith("--") and spelled.replace("_", "-") == name:
            last_value = value if equals else following
    return last_value


def send_request(
    endpoint: Endpoint,
    path: str,
    question: Mapping[str, Any] | None = None,
    timeout: float = 5.0,
    method: str = "GET",
    most: int = ANSWER_AT_MOST,
) -> Reply:
    """Ask for a path with a method, or POST a question to it as JSON. Raises Unreachable.

    `timeout` is in seconds: for the connection, for the request, and for the whole answer. `most` is the number of
    bytes that are read of it.
    """
    import http.client
    import json

    headers = {"Connection": "close", "Content-Type": "application/json"}
    if endpoint.has_request_ids:
        headers["X-Request-Id"] = f"drydock-{time.time_ns()}"
    if endpoint.key:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    if endpoint.engine is not None:  # vLLM before 0.11 ignores it
        headers["X-data-parallel-rank"] = str(endpoint.engine)
    connection = None
    try:
        connection = _open_connection(endpoint, min(timeout, endpoint.connect_seconds or timeout))
        connection.response_class = _in_time(time.monotonic() + timeout)
        if question is None:
            connection.request(method, path, headers=headers)
        else:
            connection.request("POST", path, json.dumps(question), headers)
        response = connection.getresponse()
        return Reply(response.status, response.read(most), response.headers.get("Date", ""))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise Unreachable(f"{endpoint}{path}: {reason}", reason) from error
    finally:
        if connection:
            connection.close()


def _in_time(deadline: float) -> type[http.client.HTTPResponse]:
    """Return a response that must be complete at `deadline`. A socket's own timeout begins again at each byte."""
    import http.client
    import io
    import socket

    class Timed(io.RawIOBase):
        def __init__(self, sock: socket.socket) -> None:
            self._sock, self._file = sock, sock.makefile("rb", buffering=0)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int | None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("the answer is not complete in time")
            self._sock.settimeout(remaining)
            return self._file.readinto(buffer)

        def close(self) -> None:
            self._file.close()
            super().close()

    class InTime(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
            super().__init__(sock, *arguments, **options)
            self.fp.close()
            self.fp = io.BufferedReader(Timed(sock))

    return InTime


def _open_connection(endpoint: Endpoint, timeout: float) -> http.client.HTTPConnection:
    import http.client

    if endpoint.socket:
        return _over_unix_socket(endpoint, timeout)
    if endpoint.tls:
        import ssl

        # The certificate names the host that clients use; this connects to the loopback address.
        context = ssl._create_unverified_context()  # noqa: SLF001, S323 -- see above
        return http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout)


def _over_unix_socket(endpoint: Endpoint, timeout: float) -> http.client.HTTPConnection:
    import http.client
    import socket

    class OverUnixSocket(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(endpoint.socket)

    return OverUnixSocket("localhost", timeout=timeout)
