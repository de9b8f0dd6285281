"""HTTP sessions that send a password only to the server it belongs to. Pure, except for reading ~/.netrc."""

from __future__ import annotations

from urllib.parse import urlsplit

import requests

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
