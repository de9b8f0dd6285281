"""How this machine's own configuration says that servers are reached. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from entrypoints.core.redact import redact_text


class Access(NamedTuple):
    """Certificates, proxies, credentials, mirrors and time limits. Holds secrets: never print it."""

    certificates: str | None = None
    client_certificate: str | None = None
    proxies: Mapping[str, str] = {}
    credentials: Mapping[str, tuple[str, str]] = {}
    """Origin, such as https://index.example:443 → user and password."""
    tokens: Mapping[str, str] = {}
    """Origin → bearer token."""
    insecure_hosts: frozenset[str] = frozenset()
    mirrors: Mapping[str, str] = {}
    """Prefix of a URL → the prefix that replaces it."""
    timeout: float = 60.0
    """Seconds."""
    pause: float = 0.5
    """Seconds before the second attempt; doubled each time."""
    patience: float = 120.0
    """Seconds for a whole answer that is kept in memory, also if it is requested again, and after which a transfer that
    hardly advances ends. The pauses in between do not count."""


def redact_url(url: str) -> str:
    """Return a URL without user, password, query and fragment, fit for a message."""
    parts = urlsplit(redact_text(url))  # first: a password may contain a slash
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
