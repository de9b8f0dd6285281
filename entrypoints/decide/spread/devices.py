"""Which devices serve, and in which order, so that ranks that talk most sit on the fastest links. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from entrypoints.checks.findings import notice
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Link, Notice
from entrypoints.decide.records import gib

FABRIC, SOCKET, FAR = 2, 1, 0
"""How fast a link is: the vendor's own between devices, PCIe of one processor, PCIe between processors."""

_SAME_SOCKET = ("PIX", "PXB", "PHB", "NODE", "PCIE", "PCI", "PIX+PXB")
_UNRELATED = ("SYS", "NA", "N/A", "NONE", "UNKNOWN", "")
"""As nvidia-smi, npu-smi, rocm-smi and xpu-smi name links over PCIe; every other word is a vendor's own fabric."""

_ALIKE = 0.9
"""Share of the largest memory that devices of one name must have to work together: firmware keeps some of it."""

_FREE = 0.8
"""Share of what vLLM may take that must be free, so that a device is worth taking."""

_GOOD = "healthy, free, alike"
"""What devices are expected to be."""


class Pool(NamedTuple):
    """The devices that may serve, in the vendor's order, and what is to be said about the others."""

    devices: tuple[Device, ...]
    findings: tuple[Notice, ...] = ()


def numbers(devices: Iterable[Device]) -> str:
    """Format the devices' numbers: 0-3,6."""
    return format_id_list(tuple(device.number for device in devices))


def free_memory(device: Device) -> int | None:
    """Return what nobody holds of a device's memory; None where nothing tells its memory."""
    return None if device.memory_total is None else device.memory_total - (device.memory_used or 0)


def choose_pool(facts: Facts, wished: tuple[int, ...] | None, usable: float) -> Pool:
    """Choose the devices that may serve: those wished for, else all that are healthy, free and alike.

    Raises HOST where there is none, USAGE where one is wished for that is not there.
    """
    if not facts.devices:
        raise EntrypointError(HOST, f"no {facts.accelerator} device is here", "run `check`, and `facts` for what is")
    if wished is not None:
        return _wished(facts, wished, usable)
    healthy, sick = _parted(facts.devices, is_healthy)
    free, taken = _parted(healthy, lambda device: not is_taken(device, usable))
    if not free:
        found = f"{_named('not healthy', sick)}{_named('held by others', taken)}"
        hint = "end what holds them, or name devices nonetheless: --devices " + numbers(facts.devices)
        raise EntrypointError(HOST, f"of {len(facts.devices)} devices none is healthy and free{found}", hint)
    alike, foreign = _largest_family(free)
    return Pool(alike, tuple(_left_out(sick, taken, foreign, alike[0].name)))


def is_healthy(device: Device) -> bool:
    """Tell whether nothing speaks against a device."""
    return device.health.lower() in ("", "ok")


def is_taken(device: Device, usable: float) -> bool:
    """Tell whether another process holds a device: its driver says so, or too little of its memory is free.

    A desktop's few hundred MiB are no reason to leave a device out: then vLLM takes a smaller share.
    """
    free = free_memory(device)
    full = device.memory_total is not None and free is not None and free < _FREE * usable * device.memory_total
    return device.busy is True or full


def _parted(devices: Iterable[Device], good: Callable[[Device], bool]) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    everything = tuple(devices)
    return tuple(filter(good, everything)), tuple(device for device in everything if not good(device))


def _largest_family(devices: tuple[Device, ...]) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    """Return the devices of one kind that have the most memory together, and the others."""
    families = [tuple(device for device in devices if _alike(device, first)) for first in devices]
    best = max(families, key=lambda family: (sum(device.memory_total or 0 for device in family), len(family)))
    return best, tuple(device for device in devices if device not in best)


def _alike(device: Device, first: Device) -> bool:
    if device.memory_total is None or first.memory_total is None:
        return device.name == first.name and device.memory_total == first.memory_total
    return device.name == first.name and _ALIKE <= device.memory_total / max(1, first.memory_total) <= 1 / _ALIKE


def _named(what: str, devices: tuple[Device, ...]) -> str:
    return f"; {what}: {numbers(devices)}" if devices else ""


def _left_out(
    sick: tuple[Device, ...], taken: tuple[Device, ...], foreign: tuple[Device, ...], name: str
) -> Iterator[Notice]:
    """Yield which devices are not used, by what speaks against them; `name` is that of the devices that are."""
    if sick:
        yield notice("PLAN-021", _states(sick), _GOOD, devices=numbers(sick))
    if taken:
        yield notice("PLAN-022", _states(taken), _GOOD, devices=numbers(taken))
    if foreign:
        yield notice("PLAN-023", _states(foreign), _GOOD, devices=numbers(foreign), name=name)


def _states(devices: Iterable[Device]) -> str:
    return "; ".join(_state(device) for device in devices)


def _state(device: Device) -> str:
    used = f", {gib(device.memory_used)} used" if device.memory_used else ""
    return f"{device.number}: {device.name}{', ' + device.health if device.health else ''}{used}"


def _wished(facts: Facts, wished: tuple[int, ...], usable: float) -> Pool:
    there = {device.number: device for device in facts.devices}
    missing = [number for number in wished if number not in there]
    if missing:
        message = f"--devices {format_id_list(wished)}: no device {format_id_list(tuple(missing))} is here"
        raise EntrypointError(USAGE, message, f"there are {numbers(facts.devices)}")
    devices = tuple(there[number] for number in wished)
    doubtful = tuple(device for device in devices if not is_healthy(device) or is_taken(device, usable))
    mixed = tuple(device for device in devices if not _alike(device, devices[0]))
    return Pool(devices, (*_doubted("not healthy, or held by others", doubtful), *_doubted("unlike the first", mixed)))


def _doubted(why: str, devices: tuple[Device, ...]) -> tuple[Notice, ...]:
    return (notice("PLAN-024", _states(devices), _GOOD, why=why),) if devices else ()


# --- links ----------------------------------------------------------------------------------------------------------


def speed(kind: str) -> int:
    """Return how fast a kind of link is."""
    word = kind.strip().upper()
    if word in _UNRELATED:
        return FAR
    return SOCKET if word in _SAME_SOCKET else FABRIC


def islands(devices: Iterable[Device], links: Iterable[Link], least: int) -> tuple[tuple[Device, ...], ...]:
    """Return the groups of devices that links of at least that speed join, in the order of their first device."""
    groups = [[device] for device in devices]
    home = {group[0].number: group for group in groups}
    for link in links:
        first, second = home.get(link.first), home.get(link.second)
        if first is None or second is None or first is second or speed(link.kind) < least:
            continue
        first.extend(second)
        home.update((device.number, first) for device in second)
        groups.remove(second)
    return tuple(tuple(sorted(group, key=lambda device: device.number)) for group in groups)


def widest(devices: tuple[Device, ...], links: tuple[Link, ...]) -> int:
    """Return how many devices the fastest kind of link that is here joins; all where nothing tells of links."""
    here = {device.number for device in devices}
    speeds = [speed(link.kind) for link in links if link.first in here and link.second in here]
    fastest = max(speeds, default=FAR)
    if fastest == FAR:
        return len(devices)
    return max(len(island) for island in islands(devices, links, fastest))


def arrange(
    devices: tuple[Device, ...], links: tuple[Link, ...], size: int, count: int
) -> tuple[tuple[Device, ...], ...]:
    """Pick `count` groups of `size` devices, each within the fastest island, NUMA node and row that still holds it."""
    left, groups = devices, []
    for _ in range(count):
        group = _group(left, links, size)
        groups.append(group)
        left = tuple(device for device in left if device not in group)
    return tuple(groups)


def _group(devices: tuple[Device, ...], links: tuple[Link, ...], size: int) -> tuple[Device, ...]:
    for least in (FABRIC, SOCKET):
        wide = [island for island in islands(devices, links, least) if len(island) >= size]
        if wide:
            return _near(min(wide, key=len), size)
    return _near(devices, size)


def _near(devices: tuple[Device, ...], size: int) -> tuple[Device, ...]:
    """Return the first devices of the smallest NUMA node that has enough, else the first of all."""
    nodes = {device.node for device in devices if device.node is not None}
    homes = [tuple(device for device in devices if device.node == node) for node in sorted(nodes)]
    return min((home for home in homes if len(home) >= size), key=len, default=devices)[:size]
