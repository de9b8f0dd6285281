"""The way to another host: interface, own address, and the largest packet that arrives. IO.

A datagram that may not be fragmented is sent to a port on which no one listens. That it arrived is told by the ICMP
answer `port unreachable`, which the socket reports as ECONNREFUSED; this takes no privilege. Source: ip(7), udp(7).
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import NamedTuple

ANSWER_WITHIN = 0.5
"""Seconds for the ICMP answer; hosts limit how many they send in a second."""
TRIES = 3
SMALL = 64
_LARGEST_DATAGRAM = 65507
_DISCOVER, _NEVER_FRAGMENT, _MTU = 10, 2, 14
"""IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU of linux/in.h."""
_DISCOVER_6, _MTU_6 = 23, 24
_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFMTU = 0x8913, 0x8915, 0x8921
_NAME = 16
"""Bytes of the name in a request, which the value follows."""
_UP_AND_RUNNING = 0x41
"""IFF_UP and IFF_RUNNING of linux/if.h."""
_INTERFACES_AT_MOST = 64
_HEADERS, _HEADERS_6 = 28, 48
"""Bytes of the IP and the UDP header."""


class Route(NamedTuple):
    """The way to another host."""

    address: str = ""
    """This host's own, as the other one sees it."""
    interface: str = ""
    mtu: int = 0
    """Of the interface, in bytes; 0 if it is not known."""
    arrives: bool | None = None
    """Whether a packet of that size arrives whole; None if hosts between do not tell."""
    path_mtu: int = 0
    """The largest packet that a router on the way lets through, if one told."""


def read_route(address: str, port: int) -> Route:
    """Return the way to an address. `port` is one on which no one takes datagrams."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))
            own_address = str(probe.getsockname()[0])
    except OSError:
        return Route()
    interface = interface_of(own_address)
    mtu = list_mtus().get(interface, 0)
    if not mtu:
        return Route(own_address, interface)
    headers = _HEADERS_6 if family == socket.AF_INET6 else _HEADERS
    if not _test_datagram(family, address, port, SMALL)[0]:
        return Route(own_address, interface, mtu)
    arrives, path = _test_datagram(family, address, port, min(mtu - headers, _LARGEST_DATAGRAM))
    return Route(own_address, interface, mtu, arrives, path)


def _test_datagram(family: int, address: str, port: int, size: int) -> tuple[bool, int]:
    """Return whether a datagram of `size` bytes that must stay whole arrives, and the path's MTU if it is smaller."""
    six = family == socket.AF_INET6
    level = socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.settimeout(ANSWER_WITHIN)
            probe.setsockopt(level, _DISCOVER_6 if six else _DISCOVER, _NEVER_FRAGMENT)
            probe.connect((address, port))
            for _ in range(TRIES):
                outcome = _send_datagram(probe, size)
                if outcome == errno.ECONNREFUSED:
                    return True, 0
                if outcome == errno.EMSGSIZE:
                    return False, probe.getsockopt(level, _MTU_6 if six else _MTU)
    except OSError:
        return False, 0
    return False, 0


def _send_datagram(probe: socket.socket, size: int) -> int:
    """Send a datagram and wait for the answer; return its errno, 0 if there is none."""
    try:
        probe.send(bytes(size))
        probe.recv(1)
    except TimeoutError:
        return 0
    except OSError as error:
        return error.errno or 0
    return 0


def interface_of(address: str) -> str:
    """Return the network interface that has an address; empty if none has."""
    if ":" in address:
        return _interface_6(address)
    for _, name in socket.if_nameindex():
        reply = _ask_kernel(_SIOCGIFADDR, name)
        if reply and socket.inet_ntoa(reply[20:24]) == address:
            return name
    return "lo" if address.startswith("127.") else ""


def _interface_6(address: str) -> str:
    packed_address = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as table:
            return next((line.split()[5] for line in table if line.startswith(packed_address)), "")
    except OSError:
        return ""


def list_mtus() -> dict[str, int]:
    """Return the network interfaces of this network namespace, at most 64, and their MTU in bytes.

    The kernel is asked, because /sys shows the interfaces of the namespace that mounted it.
    """
    replies = {name: _ask_kernel(_SIOCGIFMTU, name) for _, name in socket.if_nameindex()[:_INTERFACES_AT_MOST]}
    return {name: struct.unpack_from("i", reply, _NAME)[0] for name, reply in replies.items() if reply}


def list_link_states() -> dict[str, bool]:
    """Return the network interfaces, and whether each is up and connected."""
    replies = {name: _ask_kernel(_SIOCGIFFLAGS, name) for _, name in socket.if_nameindex()}
    flags = {name: struct.unpack_from("H", reply, _NAME)[0] for name, reply in replies.items() if reply}
    return {name: value & _UP_AND_RUNNING == _UP_AND_RUNNING for name, value in flags.items()}


def _ask_kernel(request: int, name: str) -> bytes:
    """Ask for a property of an interface, as netdevice(7) says; empty if it has none, or went away."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return fcntl.ioctl(any_socket, request, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return b""
