"""Access control services (ACS) of PCI Express switches: whether cards below a switch reach each other directly."""

from __future__ import annotations

import os
from collections.abc import Callable

from entrypoints.host.host import Host

_BRIDGES = "/sys/class/pci_bus/*/device/config"
"""The configuration space of each bridge."""
_HIDDEN = "hidden"
"""Recorded for a bridge if only root with CAP_SYS_ADMIN may read more than its header."""
_HEADER = 64
"""Bytes of the configuration space that every user may read."""

_STATUS, _HAS_CAPABILITIES, _FIRST, _FIRST_EXTENDED = 0x06, 0x10, 0x34, 0x100
_PCI_EXPRESS, _DOWNSTREAM_PORT, _ACS = 0x10, 6, 0x0D
_MOST = 64
"""Most capabilities to follow, in case the list is circular."""
_REDIRECT = 0b01100
"""Request and completion redirect, in the control register (linux/pci_regs.h, PCI_ACS_RR and PCI_ACS_CR)."""

Read = Callable[[int, int], int]
"""Reads a little-endian number from a configuration space: (offset, size in bytes)."""


def redirecting_ports(host: Host) -> dict[str, str]:
    """Return the number of PCI Express switch ports that redirect transfers between devices to the processor.

    Empty if the kernel does not show it: in a container only root with CAP_SYS_ADMIN can read it.
    """
    registers: list[str] = []
    for path in host.glob(_BRIDGES):
        register = (host.lookup(path, _read_register) or "").strip()
        if register == _HIDDEN:
            return {}
        registers.append(register)
    return {"acs_redirects": str(sum(map(_has_redirect, registers)))} if registers else {}


def _has_redirect(register: str) -> bool:
    try:
        return bool(int(register or "0", 16) & _REDIRECT)
    except ValueError:
        return False


def _read_register(path: str) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not os.pread(handle, 1, _HEADER):
            return _HIDDEN
        return read_acs_control(lambda offset, size: int.from_bytes(os.pread(handle, size, offset), "little"))
    finally:
        os.close(handle)


def read_acs_control(read: Read) -> str:
    """Return the ACS control register of a switch's downstream port as `0x001d`; empty for any other function."""
    port = next((at for at, kind in _list_pci_capabilities(read) if kind == _PCI_EXPRESS), None)
    if port is None or read(port + 2, 2) >> 4 & 0xF != _DOWNSTREAM_PORT:
        return ""
    acs = next((at for at, kind in _list_extended(read) if kind == _ACS), None)
    return "" if acs is None else f"{read(acs + 6, 2):#06x}"


def _list_pci_capabilities(read: Read) -> list[tuple[int, int]]:
    """Return the offset and id of each capability."""
    capabilities: list[tuple[int, int]] = []
    at = read(_FIRST, 1) & ~3 if read(_STATUS, 2) & _HAS_CAPABILITIES else 0
    while at and len(capabilities) < _MOST:
        capabilities.append((at, read(at, 1)))
        at = read(at + 1, 1) & ~3
    return capabilities


def _list_extended(read: Read) -> list[tuple[int, int]]:
    """Return the offset and id of each extended capability."""
    capabilities: list[tuple[int, int]] = []
    at = _FIRST_EXTENDED
    while at and len(capabilities) < _MOST and (header := read(at, 4)):
        capabilities.append((at, header & 0xFFFF))
        at = header >> 20 & ~3
    return capabilities
