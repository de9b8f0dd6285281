"""Who may ask a server for what: the keys of clients, the size of bodies, and what administers the server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError

KEY_FILE, MOST, ADMIN = "--api-key-file", "--max-request-bytes", "--admin-endpoints"
FLAGS = {
    KEY_FILE: ("FILE", "Read the API keys that clients must send from a file, one a line"),
    MOST: ("BYTES", "Largest body of a request (default: 32M; for images, audio and video 256M)"),
    ADMIN: ("", "Answer what administers the server, such as /pause and /update_weights"),
}
"""Flag → the name of its value, and its help text."""


class Access(NamedTuple):
    """What the user set."""

    keys: tuple[str, ...] = ()
    """Of --api-key-file."""
    most: str = ""
    """Bytes, as written."""
    admin: bool = False


def parse_access(values: Mapping[str, str]) -> Access:
    """Return what drydock's flags say, without the keys, which are in a file."""
    return Access((), values.get(MOST, ""), ADMIN in values)


def parse_keys(text: str, place: str) -> tuple[str, ...]:
    """Return the keys of a text, one a line. Raises USAGE, without a key in its words."""
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not keys:
        hint = "write one key a line; without a key, everyone who reaches the server may use it: then leave it out"
        raise EntrypointError(USAGE, f"{place}: found no key", hint)
    if not all(key.isascii() and key.isprintable() for key in keys):
        message = f"{place}: a key has characters that are not printable ASCII"
        raise EntrypointError(USAGE, message, "no client can send such a key in a header")
    return keys
