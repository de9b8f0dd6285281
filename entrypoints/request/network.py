"""Names of hosts and numbers of ports on the command line. Pure."""

from __future__ import annotations

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import is_number
from entrypoints.request.flags import HIGHEST_PORT, MOST_HOSTS


def parse_port(text: str, flag: str, least: int = 0) -> int:
    """Parse a port of at least `least`; port 0 is any free one. Raises USAGE."""
    if not (is_number(text) and least <= int(text) <= HIGHEST_PORT):
        raise EntrypointError(USAGE, f"{flag} {text}: expected a port from {least} to {HIGHEST_PORT}")
    return int(text)


def parse_hosts(text: str) -> tuple[str, ...]:
    """Parse --peers: names or addresses of hosts, also `[::1]`, separated by commas. Raises USAGE."""
    names = tuple(filter(None, (name.strip("[]") for name in text.split(","))))
    strange = any(not name.isprintable() or "/" in name or " " in name for name in names)
    if strange or len(names) > MOST_HOSTS or (text and not names):
        message = f"--peers {text}: expected at most {MOST_HOSTS} names or addresses, separated by commas"
        raise EntrypointError(USAGE, message, "--peers node0,node1")
    return names
