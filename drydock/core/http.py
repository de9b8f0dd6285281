"""What all HTTP clients share: passwords that stay with their server, answers in pieces, errors without URLs. IO."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import requests
import urllib3

PORTS = {"https": 443, "http": 80}


def origin(url: str) -> str:
    """Return scheme, host and port of a URL, to which its password belongs: https://index.example:443."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}:{parts.port or PORTS.get(parts.scheme, '')}"


def anonymous(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Send no password. As `auth`, it also keeps requests from reading ~/.netrc."""
    return request


class Session(requests.Session):
    """A session whose redirects keep a password within one origin and never gain one.

    The session of requests gives a redirect to another host that host's password from ~/.netrc, and keeps the one it
    has from port 80 to port 443.
    """

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Remove the password from a redirect to another origin."""
        if origin(prepared_request.url or "") != origin(response.request.url or ""):
            prepared_request.headers.pop("Authorization", None)


def reason(error: Exception) -> str:
    """Describe an error without its URL, which may contain credentials."""
    cause = error.__cause__ or error.__context__ or error
    return f"{type(error).__name__} ({type(cause).__name__})"


def pieces(response: requests.Response, at_most: int = 1 << 18) -> Iterator[bytes]:
    """Yield a body in pieces of at most so many bytes, as they arrive; `iter_content` waits until a piece is full.

    Raises requests.ConnectionError.
    """
    try:
        while piece := response.raw.read1(at_most, decode_content=True):
            yield piece
    except urllib3.exceptions.HTTPError as error:
        raise requests.ConnectionError(error) from error
