"""What all HTTP clients share: passwords that stay with their server, answers in time, attempts, errors. IO."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3

from drydock.core.console import log
from drydock.core.errors import FetchError
from drydock.core.files import parse_byte_count
from drydock.core.network_settings import check_request, is_loopback
from drydock.core.threads import start_daemon

RETRIED = (408, 425, 429, 500, 502, 503, 504, 509)
"""HTTP status codes after which another attempt may succeed. 509 (bandwidth exceeded) is in no RFC; hosts send it."""
LONGEST_PAUSE = 60.0
"""Seconds, even if a server asks for more."""
LONGEST_REQUEST = 600.0
"""Seconds that a server may ask for. More is an error at once: asking each minute until then would not change it."""
NOTICEABLE_PAUSE = 5.0
"""Seconds; a longer pause is logged."""
PORTS = {"https": 443, "http": 80}
LONGEST_WAIT = 120.0
"""Seconds for the header of an answer: the timeout of requests starts again with each byte, and each 100 Continue."""


def parse_origin(url: str) -> str:
    """Return scheme, host and port of a URL, to which its password belongs: https://index.example:443."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}:{parts.port or PORTS.get(parts.scheme, '')}"


def send_no_password(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Send no password. As `auth`, it also keeps requests from reading ~/.netrc."""
    return request


def make_bearer_auth(token: str) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
    """Return what sends a token, as `auth` of a request. A redirect to another origin loses it."""

    def add(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return add


class Session(requests.Session):
    """A session whose redirects keep a password within one origin and never gain one.

    The session of requests gives a redirect to another host that host's password from ~/.netrc, and keeps the one it
    has from port 80 to port 443. It also reads the bodies of redirects into memory, whatever their size.
    """

    longest_wait = LONGEST_WAIT

    def __init__(self) -> None:
        super().__init__()
        self.hooks["response"].append(_skip_body)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request.

        Raises requests.Timeout if a header that is waited for does not end, InvalidURL for a redirect to an invalid
        address, and NetworkSettingsError for certificates or a proxy that cannot be used.
        """
        check_request(request.url or "", options)
        if not options.get("stream"):
            return self._follow(request, options)
        answer = start_daemon(lambda: self._follow(request, options))
        try:
            return answer.result(self.longest_wait)
        except TimeoutError as error:
            raise requests.Timeout(f"no complete header in {self.longest_wait:g} s") from error

    def _follow(self, request: requests.PreparedRequest, options: Mapping[str, Any]) -> requests.Response:
        """Send a request and follow its redirects."""
        try:
            return super().send(request, **options)
        except requests.RequestException:
            raise
        except ValueError as error:  # of urllib.parse, which requests lets through
            raise requests.exceptions.InvalidURL(error) from error

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Remove the password from a redirect to another origin."""
        if parse_origin(prepared_request.url or "") != parse_origin(response.request.url or ""):
            prepared_request.headers.pop("Authorization", None)


# --- attempts -------------------------------------------------------------------------------------------------------


TRANSIENT = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
"""Errors of requests after which another attempt may succeed."""


class TransientRequestError(Exception):
    """An attempt failed, but another one may succeed. Never shown to the user."""

    def __init__(self, reason: str, pause: float | None = None, *, is_refused_here: bool = False) -> None:
        super().__init__(reason)
        self.pause = pause
        """Seconds that the server requests."""
        self.is_refused_here = is_refused_here
        """Whether this machine itself refused the connection: nothing listens, and a first request need not wait."""


def is_absent_here(error: TransientRequestError, *, has_answered: bool) -> bool:
    """Tell whether to ask no more, since nothing listens on this machine: a server that has answered may start again.

    The one rule of every client: registries, indexes, files.
    """
    return error.is_refused_here and not has_answered


def refuse_transient_status(response: requests.Response, server: str = "the server", message: str = "") -> None:
    """Raise TransientRequestError for a status after which another attempt may succeed."""
    if response.status_code in RETRIED:
        status = f"{response.status_code} {message or response.reason or ''}".rstrip()
        raise TransientRequestError(f"{server} answered {status}", retry_after(response))


@contextlib.contextmanager
def failures_named(what: str) -> Iterator[None]:
    """Turn errors of requests into TransientRequestError where another attempt may succeed, else into FetchError."""
    try:
        yield
    except requests.RequestException as error:
        distrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _list_causes(error))
        if isinstance(error, TRANSIENT) and not distrusted:
            raise make_transient_error(error) from error
        raise FetchError(f"{what}: {explain_request_error(error)}") from error


def make_transient_error(error: requests.RequestException) -> TransientRequestError:
    """Return the error of an attempt that failed before there was an answer."""
    request: requests.PreparedRequest | requests.Request | None = error.request
    host = urlsplit(request.url or "").hostname if request else None
    is_refused = any(isinstance(cause, ConnectionRefusedError) for cause in _list_causes(error))
    is_refused_here = is_refused and is_loopback(host or "")
    return TransientRequestError(explain_request_error(error), is_refused_here=is_refused_here)


def retry_after(response: requests.Response) -> float | None:
    """Return the seconds that a Retry-After header asks for; it holds a number or a date (RFC 9110, 10.2.3)."""
    value = response.headers.get("Retry-After", "").strip()
    if (seconds := parse_byte_count(value)) is not None:
        return float(seconds)
    try:
        until = email.utils.parsedate_to_datetime(value)
        aware = until if until.tzinfo else until.replace(tzinfo=dt.UTC)
        return max(0.0, (aware - dt.datetime.now(dt.UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


def pause_before_retry(
    failures: int,
    error: TransientRequestError,
    pause: float,
    server: str,
    wait: Callable[[float], object] | None = None,
) -> None:
    """Wait as long as the server asks for, at least longer after each failure: `pause` seconds at first, with jitter.

    A date has whole seconds and comes from another clock: it may be over before the server is ready. Raises FetchError
    for a server that asks for longer than LONGEST_REQUEST.
    """
    if error.pause and error.pause > LONGEST_REQUEST:
        text = f"{server}: {error}, and asks to wait {error.pause:.0f} s (Retry-After)"
        raise FetchError(text, hint="try again after that time")
    seconds = pause * 2.0 ** (failures - 1) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
    seconds = min(max(error.pause or 0.0, seconds), LONGEST_PAUSE)
    if seconds > NOTICEABLE_PAUSE:
        log(f"{server}: {error}; retrying in {seconds:.0f} s")
    (wait or time.sleep)(seconds)


# --- errors ---------------------------------------------------------------------------------------------------------


REASONS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (requests.exceptions.InvalidURL, "an address is invalid"),
    (requests.exceptions.TooManyRedirects, "it redirects more than 30 times, perhaps in a circle"),
    (requests.exceptions.InvalidSchema, "its address is neither http:// nor https://"),
    (urllib3.exceptions.ProxyError, "the proxy refused the connection"),
    (socket.gaierror, "the name of the server is not known (DNS)"),
    (ssl.SSLCertVerificationError, "this machine does not trust the server's certificate"),
    (ssl.SSLError, "the server does not speak TLS as expected"),
    (ConnectionRefusedError, "the connection was refused"),
    (urllib3.exceptions.DecodeError, "the answer is not compressed as its Content-Encoding says"),
    ((TimeoutError, urllib3.exceptions.TimeoutError, requests.Timeout), "no answer in time"),
    ((ConnectionError, urllib3.exceptions.ProtocolError), "the connection broke before the answer was complete"),
)
"""What is found among the causes of an error → what it means. The first row that fits counts."""


def explain_request_error(error: Exception) -> str:
    """Say in plain words why a request failed, without its URL, which may contain credentials."""
    causes = tuple(_list_causes(error))
    for kinds, words in REASONS:
        if any(isinstance(cause, kinds) for cause in causes):
            return words
    return f"{type(error).__name__} ({type(causes[-1]).__name__})"


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it. urllib3 keeps a cause in `reason`, requests in its arguments."""
    yield error
    inner = [error.__cause__ or error.__context__, getattr(error, "reason", None), *error.args]
    for cause in inner:
        if isinstance(cause, BaseException):
            yield from _list_causes(cause)


def read_pieces(response: requests.Response, at_most: int = 1 << 18) -> Iterator[bytes]:
    """Yield a body in pieces of at most so many bytes, as they arrive; `iter_content` waits until a piece is full.

    Raises requests.ConnectionError.
    """
    try:
        while piece := response.raw.read1(at_most, decode_content=True):
            yield piece
    except urllib3.exceptions.HTTPError as error:
        raise requests.ConnectionError(error) from error


def _skip_body(response: requests.Response, **_: Any) -> None:
    """Leave out the body of a redirect."""
    if response.is_redirect:
        response.close()
        response._content = b""  # noqa: SLF001 - requests has no other way
