"""The choice and order of devices: ranks that communicate most get the fastest links. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Link, Notice
from entrypoints.decide.records import gib

FABRIC, SOCKET, FAR = 2, 1, 0
"""Speed of a link: the vendor's own between devices, PCIe of one processor, PCIe between processors."""

_SAME_SOCKET = ("PIX", "PXB", "PHB", "NODE", "PCIE", "PCI", "PIX+PXB")
_UNRELATED = ("SYS", "NA", "N/A", "NONE", "UNKNOWN", "")
"""Names of links over PCIe in nvidia-smi, npu-smi, rocm-smi and xpu-smi; any other name is a vendor's own link."""

_SIMILAR_MEMORY = 0.8
"""Least ratio of memory sizes of devices of one name that serve together. Error correction (ECC) takes up to an eighth
of the memory, and firmware reserves a varying part; a larger difference is another model of the device."""
_SAME_MEMORY = 0.98
"""Ratio of memory sizes above which the difference costs nothing worth a notice."""

_FREE = 0.8
"""Share of vLLM's part of the memory that must be free for a device to count as free."""

_EXPECTED = "healthy, free, alike"
"""The expected state of devices."""


def find_smallest_memory(facts: Facts) -> int:
    """Return the bytes of the smallest device; 0 if unknown."""
    return min((device.memory_total or 0 for device in facts.devices), default=0)


class Pool(NamedTuple):
    """The devices that may serve, in the vendor's order, and notices about the others."""

    devices: tuple[Device, ...]
    findings: tuple[Notice, ...] = ()


def format_numbers(devices: Iterable[Device]) -> str:
    """Format the devices' numbers: 0-3,6."""
    return format_id_list(tuple(device.number for device in devices))


def free_memory(device: Device) -> int | None:
    """Return the free bytes of a device's memory; None if its memory is unknown."""
    return None if device.memory_total is None else device.memory_total - (device.memory_used or 0)


def choose_pool(facts: Facts, requested: tuple[int, ...] | None, usable: float) -> Pool:
    """Choose the devices that may serve: those of --devices, else all that are healthy, free and alike.

    Raises HOST if there is none, USAGE for a requested device that does not exist.
    """
    if not facts.devices:
        raise EntrypointError(
            HOST, f"no {facts.accelerator} device found", "run `check`, or `facts` for what was found"
        )
    if requested is not None:
        return _requested_pool(facts, requested, usable)
    healthy = tuple(device for device in facts.devices if is_healthy(device))
    unhealthy = tuple(device for device in facts.devices if not is_healthy(device))
    free = tuple(device for device in healthy if not is_in_use(device, usable))
    in_use = tuple(device for device in healthy if is_in_use(device, usable))
    if not free:
        raise _none_usable(facts.devices, unhealthy, in_use)
    alike, different = _largest_family(free)
    return Pool(
        alike, (*_find_exclusion_notices(unhealthy, in_use, different, alike[0].name), *_check_unequal_memory(alike))
    )


def _none_usable(
    devices: tuple[Device, ...], unhealthy: tuple[Device, ...], in_use: tuple[Device, ...]
) -> EntrypointError:
    """Return the error that no device can serve. A process is named only where the driver reports one."""
    busy_devices = tuple(device for device in in_use if device.busy)
    full = tuple(device for device in in_use if not device.busy)
    sizes = ", ".join(
        f"{device.number} ({gib(free_memory(device) or 0)} of {gib(device.memory_total or 0)})" for device in full
    )
    states = (
        f"{_label_devices('not healthy', unhealthy)}{_label_devices('held by other processes', busy_devices)}"
        f"{f'; too little memory is free: {sizes}' if full else ''}"
    )
    hint = f"end the processes that hold them, or select devices anyway: --devices {format_numbers(devices)}"
    return EntrypointError(HOST, f"none of {len(devices)} devices is healthy and free{states}", hint)


def is_healthy(device: Device) -> bool:
    """Return whether a device is healthy, or its health unknown."""
    return device.health.lower() in ("", "ok")


def is_in_use(device: Device, usable: float) -> bool:
    """Return whether another process uses a device: its driver reports it, or too little of its memory is free.

    A device with a few hundred MiB of a desktop is not excluded: vLLM then gets a smaller share.
    """
    free = free_memory(device)
    full = device.memory_total is not None and free is not None and free < _FREE * usable * device.memory_total
    return device.busy is True or full


def _largest_family(devices: tuple[Device, ...]) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    """Return the devices of one kind that have the most memory together, and the others."""
    kinds = {(device.name, device.memory_total): device for device in devices}.values()
    families = [tuple(device for device in devices if _is_alike(device, kind)) for kind in kinds]
    best = max(families, key=lambda family: (sum(device.memory_total or 0 for device in family), len(family)))
    return best, tuple(device for device in devices if device not in best)


def _is_similar(size: int, other_size: int) -> bool:
    return _SIMILAR_MEMORY <= size / max(1, other_size) <= 1 / _SIMILAR_MEMORY


def _is_alike(device: Device, first: Device) -> bool:
    if device.memory_total is None or first.memory_total is None:
        return device.name == first.name and device.memory_total == first.memory_total
    return device.name == first.name and _is_similar(device.memory_total, first.memory_total)


def _check_unequal_memory(devices: tuple[Device, ...]) -> Iterator[Notice]:
    """Yield a notice if the smallest device leaves memory of the others unused."""
    sizes = {device: device.memory_total for device in devices if device.memory_total}
    least, most = min(sizes.values(), default=0), max(sizes.values(), default=0)
    if least >= _SAME_MEMORY * most:
        return
    small = [device for device in sizes if sizes[device] < _SAME_MEMORY * most]
    large = [device for device in sizes if device not in small]
    memory_sizes = f"{gib(least)} on {format_numbers(small)}, {gib(most)} on {format_numbers(large)}"
    cost = gib(sum(sizes.values()) - least * len(sizes))
    yield make_notice(
        "PLAN-140", memory_sizes, "the same memory on every device", cost=cost, others=format_numbers(large)
    )


def _label_devices(label: str, devices: tuple[Device, ...]) -> str:
    return f"; {label}: {format_numbers(devices)}" if devices else ""


def _find_exclusion_notices(
    unhealthy: tuple[Device, ...], in_use: tuple[Device, ...], different: tuple[Device, ...], name: str
) -> Iterator[Notice]:
    """Yield notices about excluded devices; `name` is the name of the used ones."""
    if unhealthy:
        yield make_notice("PLAN-021", _describe_states(unhealthy), _EXPECTED, devices=format_numbers(unhealthy))
    if in_use:
        yield make_notice("PLAN-022", _describe_states(in_use), _EXPECTED, devices=format_numbers(in_use))
    if different:
        yield make_notice(
            "PLAN-023", _describe_states(different), _EXPECTED, devices=format_numbers(different), name=name
        )


def _describe_states(devices: Iterable[Device]) -> str:
    return "; ".join(_describe_state(device) for device in devices)


def _describe_state(device: Device) -> str:
    memory_use = f", {gib(device.memory_used)} used" if device.memory_used else ""
    return f"{device.number}: {device.name}{', ' + device.health if device.health else ''}{memory_use}"


def _requested_pool(facts: Facts, requested: tuple[int, ...], usable: float) -> Pool:
    """Return the devices of --devices, with notices about doubtful ones. Raises USAGE."""
    by_number = {device.number: device for device in facts.devices}
    missing = tuple(number for number in requested if number not in by_number)
    if missing:
        message = f"--devices {format_id_list(requested)}: no device {format_id_list(missing)}"
        raise EntrypointError(USAGE, message, f"available devices: {format_numbers(facts.devices)}")
    devices = tuple(by_number[number] for number in requested)
    doubtful = tuple(device for device in devices if not is_healthy(device) or is_in_use(device, usable))
    mixed = tuple(device for device in devices if not _is_alike(device, devices[0]))
    findings = (
        *_make_doubt_notices("not healthy, or held by other processes", doubtful),
        *_make_doubt_notices("different from the first", mixed),
        *_check_unequal_memory(devices),
    )
    return Pool(devices, findings)


def _make_doubt_notices(why: str, devices: tuple[Device, ...]) -> tuple[Notice, ...]:
    return (make_notice("PLAN-024", _describe_states(devices), _EXPECTED, why=why),) if devices else ()


# --- links ----------------------------------------------------------------------------------------------------------


@cache
def rate_link(kind: str) -> int:
    """Return the speed of a kind of link."""
    word = kind.strip().upper()
    if word in _UNRELATED:
        return FAR
    return SOCKET if word in _SAME_SOCKET else FABRIC


def find_islands(devices: Iterable[Device], links: Iterable[Link], least: int) -> list[tuple[Device, ...]]:
    """Return the groups of devices joined by links of at least this speed, in the order of their first device."""
    return _group_islands(devices, _join_devices(links, least))


def _join_devices(links: Iterable[Link], least: int) -> dict[int, set[int]]:
    """Return the numbers of the devices that links of at least this speed join each device to."""
    joined: dict[int, set[int]] = {}
    for link in links:
        if rate_link(link.kind) >= least:
            joined.setdefault(link.first, set()).add(link.second)
            joined.setdefault(link.second, set()).add(link.first)
    return joined


def _group_islands(devices: Iterable[Device], joined: Mapping[int, set[int]]) -> list[tuple[Device, ...]]:
    by_number = {device.number: device for device in devices}
    groups, unreached = [], set(by_number)
    for number in by_number:
        if number not in unreached:
            continue
        unreached.remove(number)
        island = [number]
        for reached in island:  # grows while it is read
            near = unreached & joined.get(reached, set())
            unreached -= near
            island += near
            if not unreached:
                break
        groups.append(tuple(by_number[member] for member in sorted(island)))
    return groups


def count_widest_island(devices: tuple[Device, ...], links: tuple[Link, ...]) -> int:
    """Return the number of devices that the fastest kind of link joins; all devices if no links are known."""
    device_numbers = {device.number for device in devices}
    speeds = [rate_link(link.kind) for link in links if link.first in device_numbers and link.second in device_numbers]
    fastest = max(speeds, default=FAR)
    if fastest == FAR:
        return len(devices)
    return max(len(island) for island in find_islands(devices, links, fastest))


def arrange_devices(
    devices: tuple[Device, ...], links: tuple[Link, ...], size: int, count: int
) -> tuple[tuple[Device, ...], ...]:
    """Return `count` groups of `size` devices, each on the fastest links and the NUMA node with enough devices left."""
    remaining, groups = devices, []
    joined = [_join_devices(links, least) for least in (FABRIC, SOCKET)]
    levels = [_group_islands(devices, neighbours) for neighbours in joined]
    for _ in range(count):
        group = _choose_group(remaining, levels, size)
        groups.append(group)
        group_numbers = {device.number for device in group}
        remaining = _exclude_devices(remaining, group_numbers)
        levels = [
            [rest for island in level for rest in _divide_island(island, group_numbers, neighbours)]
            for level, neighbours in zip(levels, joined, strict=True)
        ]
    return tuple(groups)


def _exclude_devices(devices: tuple[Device, ...], taken_numbers: set[int]) -> tuple[Device, ...]:
    return tuple(device for device in devices if device.number not in taken_numbers)


def _divide_island(
    island: tuple[Device, ...], taken_numbers: set[int], joined: Mapping[int, set[int]]
) -> list[tuple[Device, ...]]:
    """Return the islands that are left of an island; one that lost no device is not searched again."""
    remaining = _exclude_devices(island, taken_numbers)
    return [island] if len(remaining) == len(island) else _group_islands(remaining, joined)


def _choose_group(devices: tuple[Device, ...], levels: list[list[tuple[Device, ...]]], size: int) -> tuple[Device, ...]:
    for level in levels:
        wide = [island for island in level if len(island) >= size]
        if wide:
            return _on_one_node(min(wide, key=lambda island: (len(island), island[0].number)), size)
    return _on_one_node(devices, size)


def _on_one_node(devices: tuple[Device, ...], size: int) -> tuple[Device, ...]:
    """Return the first devices of the smallest NUMA node with enough of them, else the first of all devices."""
    nodes = {device.node for device in devices if device.node is not None}
    homes = [tuple(device for device in devices if device.node == node) for node in sorted(nodes)]
    return min((home for home in homes if len(home) >= size), key=len, default=devices)[:size]
