"""Which part of a request a server computes, and where NIXL's handshake is answered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.request.network import parse_port

SERVE, PREFILL, DECODE = "serve", "prefill", "decode"
ROLES = (SERVE, PREFILL, DECODE)
NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
"""vLLM's connectors that exchange KV caches with NIXL."""
PLACEHOLDERS = ("files", "tensor_parallel", "data_parallel")
"""What {NAME} stands for in a stack's values by role: the folder of the role's files, and the server's parallelism."""

ROLE_FLAGS = {
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
    port = values.get("--side-channel-port")
    number = 0 if port is None else parse_port(port, "--side-channel-port", least=1)
    return Role(name, values.get("--side-channel-host", ""), number)
