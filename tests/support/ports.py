"""Free ports for tests that start servers at ports which they name."""

from __future__ import annotations

import itertools
import os
import socket

_WORKERS, _EACH = 10, 1000
"""Processes of pytest, and ports of each."""
_FIRST = 12000
"""All ports are below those that Linux gives to connections and to servers without a wish (net.ipv4.ip_local_port_range
begins at 32768): a port that is free stays free until its test listens on it."""


def _own() -> range:
    """Return the ports of this process of pytest."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    return range(_FIRST + worker * _EACH, _FIRST + (worker + 1) * _EACH)


_NEXT = itertools.cycle([*_own()[os.getpid() % _EACH :], *_own()[: os.getpid() % _EACH]])
"""Begins elsewhere in each process: runs of two checkouts on one machine have the same ports."""


def free_port() -> int:
    """Return a port that is free on all addresses and that no test of this process had lately."""
    for port in itertools.islice(_NEXT, _EACH):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port of {_own()} is free")
