"""Finds the PCI devices of a vendor in /sys, with their NUMA node and nearby CPUs. IO only through `Host`."""

from __future__ import annotations

from os.path import basename, dirname
from typing import NamedTuple

from entrypoints.core.parse import is_number, parse_id_list, parse_line
from entrypoints.host.host import Host

_DEVICES = "/sys/bus/pci/devices"


class Pci(NamedTuple):
    """One PCI function."""

    bus: str
    """0000:19:00.0"""
    device: str
    """Device id: 0x1020."""
    kind: str
    """Class, six digits: 0x120000 is a processing accelerator, 0x030000 a display, 0x030200 a 3D controller."""
    node: int | None
    cpus: tuple[int, ...]


def find_pci_functions(
    host: Host, vendor: str, devices: tuple[str, ...] = (), kinds: tuple[str, ...] = ()
) -> tuple[Pci, ...]:
    """Return the PCI functions of a vendor (0x1da3).

    `devices` and `kinds` limit them to these device ids, and to classes that begin with one of `kinds`, such as 0x12.
    """
    paths = (dirname(path) for path in host.glob(f"{_DEVICES}/*/vendor") if _read_pci_word(host, path) == vendor)
    functions = (
        (path, _read_pci_word(host, f"{path}/device"), _read_pci_word(host, f"{path}/class")) for path in paths
    )
    return tuple(
        Pci(basename(path), device, kind, _read_pci_node(host, path), _read_local_cpus(host, path))
        for path, device, kind in functions
        if (not devices or device in devices) and (not kinds or kind.startswith(kinds))
    )


def read_pci_affinity(host: Host, bus: str) -> tuple[int | None, tuple[int, ...]]:
    """Return the NUMA node and the CPUs near a PCI address, which may be in capitals or have a longer domain."""
    domain, _, rest = bus.lower().partition(":")
    path = f"{_DEVICES}/{domain[-4:]}:{rest}"
    return _read_pci_node(host, path), _read_local_cpus(host, path)


def _read_local_cpus(host: Host, path: str) -> tuple[int, ...]:
    nothing: tuple[int, ...] = ()
    return host.parsed(f"{path}/local_cpulist", parse_id_list, nothing)


def _read_pci_node(host: Host, path: str) -> int | None:
    """Return the NUMA node; None if the kernel writes -1, which means unknown."""
    word = _read_pci_word(host, f"{path}/numa_node")
    return int(word) if is_number(word) else None


def _read_pci_word(host: Host, path: str) -> str:
    return host.parsed(path, parse_line, "")
