"""Access control services of PCI Express switches: whether cards below one reach each other directly. Facts only."""

from __future__ import annotations

import os
from collections.abc import Callable

from entrypoints.host.host import Host

_BRIDGES = "/sys/class/pci_bus/*/device/config"
"""The configuration space of each bridge, by the bus behind it."""
_HIDDEN = "hidden"
"""What stands for a configuration of which only root with CAP_SYS_ADMIN sees more than the header."""
_HEADER = 64
"""Bytes that everybody may read."""

_STATUS, _HAS_CAPABILITIES, _FIRST, _FIRST_EXTENDED = 0x06, 0x10, 0x34, 0x100
_PCI_EXPRESS, _DOWNSTREAM_PORT, _ACS = 0x10, 6, 0x0D
_MOST = 64
"""Capabilities that are followed: a bound for a list that bites its tail."""
_REDIRECT = 0b01100
"""Request and completion redirect, in the control register (linux/pci_regs.h, PCI_ACS_RR and PCI_ACS_CR)."""

Read = Callable[[int, int], int]
"""Reads so many bytes at an offset of a configuration space, little-endian."""


def redirecting_ports(host: Host) -> dict[str, str]:
    """Tell how many ports of PCI Express switches send what one device writes to another up to the processor.

    Nothing where the kernel does not show it: a container sees it as root with CAP_SYS_ADMIN only.
    """
    found: list[str] = []
    for path in host.glob(_BRIDGES):
        answer = (host.lookup(path, _ask) or "").strip()
        if answer == _HIDDEN:
            return {}
        found.append(answer)
    return {"acs_redirects": str(sum(map(_redirects, found)))} if found else {}


def _redirects(answer: str) -> bool:
    try:
        return bool(int(answer or "0", 16) & _REDIRECT)
    except ValueError:
        return False


def _ask(path: str) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not os.pread(handle, 1, _HEADER):
            return _HIDDEN
        return control(lambda offset, size: int.from_bytes(os.pread(handle, size, offset), "little"))
    finally:
        os.close(handle)


def control(read: Read) -> str:
    """Return the control register of a switch's downstream port as `0x001d`; empty for any other function."""
    port = next((at for at, kind in _capabilities(read) if kind == _PCI_EXPRESS), None)
    if port is None or read(port + 2, 2) >> 4 & 0xF != _DOWNSTREAM_PORT:
        return ""
    acs = next((at for at, kind in _extended(read) if kind == _ACS), None)
    return "" if acs is None else f"{read(acs + 6, 2):#06x}"


def _capabilities(read: Read) -> list[tuple[int, int]]:
    """Return offset and kind of each capability."""
    found: list[tuple[int, int]] = []
    at = read(_FIRST, 1) & ~3 if read(_STATUS, 2) & _HAS_CAPABILITIES else 0
    while at and len(found) < _MOST:
        found.append((at, read(at, 1)))
        at = read(at + 1, 1) & ~3
    return found


def _extended(read: Read) -> list[tuple[int, int]]:
    """Return offset and kind of each extended capability."""
    found: list[tuple[int, int]] = []
    at = _FIRST_EXTENDED
    while at and len(found) < _MOST and (header := read(at, 4)):
        found.append((at, header & 0xFFFF))
        at = header >> 20 & ~3
    return found
