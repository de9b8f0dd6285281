"""Who can reach a server, and the key they need: the published address, and where the API key comes from.

By default only this machine's own programs can connect. On any other address, clients must send a key.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.core.errors import InputError
from entrypoints.core.errors import EntrypointError
from entrypoints.request.access import parse_keys

LOOPBACK, EVERY_ADDRESS = "127.0.0.1", "0.0.0.0"  # noqa: S104 - a default of Kubernetes only, and a hint
LAST_PORT = 65535
API_KEY = "VLLM_API_KEY"
"""The keys that clients must send, one a line. As an argument (--api-key), every user of the machine could read it."""
FLAG, FILE_FLAG, HOST_FLAG = "--api-key", "--api-key-file", "--host"
NAMES_HERE = ("localhost", LOOPBACK, "[::1]")
"""How clients on this machine name a server on loopback."""
KEY_AT_MOST = 1 << 20
"""Characters of a key file, as in the entrypoint."""


class Listening(NamedTuple):
    """Where a server's port is published."""

    address: str
    """Empty if none was given."""
    port: int


def parse_port(text: str) -> Listening:
    """Parse PORT or IP:PORT as docker does; the next port must be valid too, for the status port. Raises InputError."""
    address, _, port = text.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 0 < int(port) < LAST_PORT:
        raise InputError(f"--port {text}: expected a number from 1 to {LAST_PORT - 1}; the status port is the next one")
    if ":" not in text:
        return Listening("", int(port))
    bare = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    try:
        ip_address = ipaddress.ip_address(bare)
    except ValueError:
        raise InputError(f"--port {text}: {address!r} is no IP address", hint="such as 127.0.0.1:8000") from None
    if (ip_address.version == 6) != address.startswith("["):  # noqa: PLR2004 - of IP
        raise InputError(f"--port {text}: expected IPv6 addresses, and only these, in brackets: [::1]:8000")
    return Listening(str(ip_address), int(port))


def is_exposed(address: str) -> bool:
    """Return whether other machines can reach an address. A host name counts as reachable, except localhost."""
    try:
        return not ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address != "localhost"


def bracket_address(address: str) -> str:
    """Return an address as it stands before a colon and a port."""
    return f"[{address}]" if ":" in address else address


def value_of(arguments: Sequence[str], flag: str) -> str:
    """Return the last value of one of vLLM's flags, in any spelling; empty if it is absent."""
    spaced = [word for argument in arguments for word in _split_key_flag(argument, flag)]
    places = [place for place, word in enumerate(spaced[:-1]) if word == flag]
    return spaced[places[-1] + 1] if places else ""


def without_key(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arguments without --api-key, and its keys, as its last occurrence gives them.

    Raises InputError if it gives none.
    """
    spaced = [word for argument in arguments for word in _split_key_flag(argument, FLAG)]
    if FLAG not in spaced:
        return tuple(arguments), ()
    rest, keys, inside = list[str](), list[str](), False
    for word in spaced:
        if word == FLAG:
            inside, keys = True, []
        elif inside and not word.startswith("-"):
            keys.append(word)
        else:
            inside = False
            rest.append(word)
    return tuple(rest), _parse_keys("\n".join(keys), FLAG)


def read_keys(path: str) -> tuple[str, ...]:
    """Return the keys in a file, one a line. Raises InputError."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(KEY_AT_MOST)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"--api-key-file {path}: {reason}", hint="write the keys into a file of your own") from error
    keys = _parse_keys(text, f"--api-key-file {path}")
    if any(" " in key for key in keys):
        raise InputError(f"--api-key-file {path}: expected one key a line, found a space")
    return keys


def check_variable() -> None:
    """Raise InputError if the environment has the variable of the key and no key in it: the container would end."""
    if API_KEY in os.environ:
        _parse_keys(os.environ[API_KEY], API_KEY)


def _parse_keys(text: str, place: str) -> tuple[str, ...]:
    """Return the keys of a text, one a line, by the rule of the container. Raises InputError."""
    try:
        return parse_keys(text, place)
    except EntrypointError as error:
        raise InputError(error.message, hint=error.hint) from error


def require_key(address: str, port: int) -> None:
    """Raise InputError unless the environment has the key that clients of this address must send."""
    if API_KEY not in os.environ:
        raise InputError(
            f"--port {bracket_address(address)}:{port}: other machines can reach this address, and no API key is set",
            hint=f"set {API_KEY} or pass --api-key-file FILE; --port {port} is for this machine only; --no-api-key lets"
            " everyone in",
        )


def _split_key_flag(argument: str, flag: str) -> tuple[str, ...]:
    """Return --api-key=KEY, in any spelling, as two words, and any other argument as it is."""
    name, equals, value = argument.partition("=")
    if name.replace("_", "-") != flag:
        return (argument,)
    return (flag, value) if equals else (flag,)
