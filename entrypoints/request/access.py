"""The flags for who may ask a server for what: the keys of clients, the size of bodies, what administers it.

Pure, except `read_keys`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError

KEY_FILE, MOST, ADMIN = "--api-key-file", "--max-request-bytes", "--admin-endpoints"
ADMIN_KEY_FILE, ADMIN_KEY_VARIABLE = "--admin-key-file", "DRYDOCK_ADMIN_KEY"
ACCESS_FLAGS = {
    KEY_FILE: ("FILE", "Read the API keys that clients must send from a file, one a line"),
    MOST: ("BYTES", "Largest body of a request (default: 32M; for images, audio and video 256M)"),
    ADMIN_KEY_FILE: (
        "FILE",
        "Read the keys that alone open what administers the server, one a line",
    ),
    ADMIN: ("", "Answer what administers the server, such as /pause and /update_weights"),
}
"""Flag → the name of its value, and its help text."""
_KEY_FILE_AT_MOST = 1 << 20
"""Bytes."""
_NO_KEY = """\
write one key a line; to let everyone who reaches the server use it, leave it out (in Compose, ${KEY:-} is an empty \
value where KEY is not set, and ${KEY:?} an error)"""
ALLOWED_HOSTS = "DRYDOCK_ALLOWED_HOSTS"
"""Names, with commas, by which clients may ask a server without a key."""
_HOST_NAME = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?")


class Access(NamedTuple):
    """What the user set."""

    keys: tuple[str, ...] = ()
    """Of --api-key-file."""
    most: str = ""
    """Bytes, as written."""
    admin: bool = False
    admin_key_file: str = ""
    admin_keys: tuple[str, ...] = ()
    """Of --admin-key-file."""


def parse_access(values: Mapping[str, str]) -> Access:
    """Return what drydock's flags say, without the keys, which are in a file."""
    return Access((), values.get(MOST, ""), ADMIN in values, values.get(ADMIN_KEY_FILE, ""))


def check_allowed_hosts(text: str) -> None:
    """Raise USAGE for names that no Host header can have, and for none: a server that compares none answers to all."""
    names = [name.strip() for name in text.split(",")]
    wrong = next((name for name in names if not _HOST_NAME.fullmatch(name)), None)
    if wrong is not None:
        hint = "such as llm.example,10.0.0.7,[fd00::7]; leave the variable out to answer to every name"
        message = f"{ALLOWED_HOSTS}: found {wrong!r}, expected names without scheme, port and path, with commas"
        raise EntrypointError(USAGE, message, hint)


def parse_keys(text: str, place: str) -> tuple[str, ...]:
    """Return the keys of a text, one a line. Raises USAGE, without a key in its words."""
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not keys:
        raise EntrypointError(USAGE, f"{place}: found no key", _NO_KEY)
    if not all(key.isascii() and key.isprintable() for key in keys):
        message = f"{place}: a key has characters that are not printable ASCII"
        raise EntrypointError(USAGE, message, "no client can send such a key in a header")
    return keys


def read_keys(path: str, flag: str = KEY_FILE) -> tuple[str, ...]:
    """Return the keys of a file. Raises USAGE."""
    import os

    from entrypoints.core.folders import read_bounded

    try:
        keys = parse_keys(read_bounded(path, _KEY_FILE_AT_MOST).decode("ascii"), f"{flag} {path}")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII text"
        hint = f"mount a file with one key a line that uid {os.getuid()} can read"
        raise EntrypointError(USAGE, f"{flag} {path}: {reason}", hint) from error
    if any(" " in key for key in keys):
        raise EntrypointError(USAGE, f"{flag} {path}: a line has a space in it", "write one key a line")
    return keys
