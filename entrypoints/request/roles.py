"""Which part of a request a server computes, and where NIXL's handshake is answered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import is_number

SERVE, PREFILL, DECODE = "serve", "prefill", "decode"
ROLES = (SERVE, PREFILL, DECODE)
_HIGHEST_PORT = 65535

FLAGS = {
    "--role": ("ROLE", "Part of each request: serve (all, default), prefill (prompts) or decode (answers)"),
    "--side-channel-host": ("ADDRESS", "Address of this host for NIXL's handshake"),
    "--side-channel-port": ("N", "Port of NIXL's handshake, the same on every host (default: 5600)"),
}
"""Flag → the name of its value, and its help text."""


class Role(NamedTuple):
    """A server's role."""

    name: str = SERVE
    """One of ROLES."""
    host: str = ""
    port: int = 0
    """0 if it is not set."""


def parse_role(values: Mapping[str, str]) -> Role:
    """Parse the role among drydock's flags. Raises USAGE."""
    name = values.get("--role", SERVE)
    if name not in ROLES:
        raise EntrypointError(USAGE, f"--role {name}: invalid value, expected {', '.join(ROLES)}")
    port = values.get("--side-channel-port", "0")
    if not (is_number(port) and int(port) <= _HIGHEST_PORT) or ("--side-channel-port" in values and not int(port)):
        raise EntrypointError(USAGE, f"--side-channel-port {port}: expected a port from 1 to {_HIGHEST_PORT}")
    return Role(name, values.get("--side-channel-host", ""), int(port))
