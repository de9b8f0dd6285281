"""The TCP ports of a start: checks that vLLM's port is free and binds the status port. IO."""

from __future__ import annotations

import socket

from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.host.processes import is_listening

CLIENTS_AT_MOST = 64
"""Simultaneous connections to the status port."""


def check_port(host: str, port: int) -> None:
    """Raise HOST if vLLM could not bind its address. Nothing stays bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        probe = socket.socket(family, socket.SOCK_STREAM)
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
        finally:
            probe.close()
    except OSError as error:
        by = "; another process of this network namespace listens there" if is_listening(port) else ""
        hint = "choose another port with --port N, or an address of this host with --host"
        raise EntrypointError(HOST, f"--host {host or '0.0.0.0'} --port {port}: {error.strerror}{by}", hint) from error  # noqa: S104 -- shown, not bound


def listen_on_status_port(port: int) -> socket.socket:
    """Bind the status port on every address, IPv6 and IPv4; 0 lets the kernel choose. Raises HOST."""
    try:
        return _bind_listener(socket.AF_INET6, port)
    except OSError:  # no IPv6, or the port is in use: the attempt with IPv4 shows which
        pass
    try:
        return _bind_listener(socket.AF_INET, port)
    except OSError as error:
        hint = "choose another port with --status-port N"
        raise EntrypointError(HOST, f"status port {port}: cannot listen: {error.strerror}", hint) from error


def bound_at(address: str, port: int) -> socket.socket:
    """Bind a port of one address. Raises OSError."""
    return _bind_listener(socket.AF_INET6 if ":" in address else socket.AF_INET, port, address)


def _bind_listener(family: int, port: int, address: str = "") -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        every = "::" if family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104 -- kubelet asks the pod's address
        listener.bind((address or every, port))
        listener.listen(CLIENTS_AT_MOST)
    except OSError:
        listener.close()
        raise
    return listener
