"""Neuron devices → the logical NeuronCores that vLLM counts as ranks, and which of them serve. Pure.

A process's cores are numbered over all devices in its container, device by device (NEURON_RT_VISIBLE_CORES). Cores that
talk to each other must start at a multiple of their number. Source: Neuron SDK documentation, PyTorch NeuronX
environment variables, NEURON_RT_VISIBLE_CORES.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.parse import format_id_list, parse_id_list, parse_number
from entrypoints.core.records import Device, Facts, Link
from entrypoints.decide.records import Value
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "NEURON_RT_VISIBLE_CORES"
COUNT = "NEURON_RT_NUM_CORES"


class Cores(NamedTuple):
    """The cores that may serve, as devices of one rank each, and what was wished for in their numbers."""

    facts: Facts
    given: UserFlags
    left_out: tuple[Device, ...]
    """Devices that another process holds, or that are not healthy, unless they were wished for."""


def as_cores(facts: Facts, given: UserFlags) -> Cores:
    """Return every core that this container may use as a device of its own.

    Raises USAGE for cores and devices that are not here, HOST where all devices are held or broken.
    """
    members = _members(facts.devices)
    left_out = _left_out(facts.devices) if given.intents.devices is None else ()
    free = [device for device in facts.devices if device not in left_out]
    allowed = _allowed(given, [number for numbers in members.values() for number in numbers])
    devices = tuple(_core(device, number) for device in free for number in members[device.number] if number in allowed)
    wished = given.intents.devices
    if wished is not None:
        cores = tuple(number for device in wished for number in _known(members, device) if number in allowed)
        given = given._replace(intents=given.intents._replace(devices=cores))
    return Cores(facts._replace(devices=devices, links=tuple(_links(facts.links, members))), given, left_out)


def _left_out(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the devices that cannot serve. Raises HOST where that leaves none."""
    found = tuple(device for device in devices if device.busy or device.health not in ("", "ok"))
    if found and len(found) == len(devices):
        numbers = format_id_list(tuple(device.number for device in found))
        hint = f"end what holds them, or name devices nonetheless: --devices {numbers}"
        raise EntrypointError(HOST, f"Neuron devices {numbers}: each is held by a process, or not healthy", hint)
    return found


def _members(devices: Iterable[Device]) -> dict[int, range]:
    """Return each device's cores, numbered device by device."""
    members: dict[int, range] = {}
    start = 0
    for device in devices:
        members[device.number] = range(start, start + device.cores)
        start += device.cores
    return members


def _known(members: Mapping[int, range], device: int) -> range:
    if device not in members:
        here = format_id_list(tuple(members))
        raise EntrypointError(USAGE, f"--devices {device}: no such Neuron device, expected some of {here or 'none'}")
    return members[device]


def _allowed(given: UserFlags, cores: list[int]) -> set[int]:
    """Return the cores that the user's variables leave. Raises USAGE."""
    visible, count = given.variable(VISIBLE), given.variable(COUNT)
    try:
        if visible is not None:
            allowed = set(parse_id_list(visible)) & set(cores)
        else:
            allowed = set(cores[: parse_number(count)] if count else cores)
    except ValueError as error:
        named = f"{VISIBLE}={visible}" if visible is not None else f"{COUNT}={count}"
        raise EntrypointError(USAGE, f"{named}: expected core numbers, such as 0-7, or their count") from error
    if cores and not allowed:
        raise EntrypointError(USAGE, f"{VISIBLE}={visible}: none of the cores 0-{cores[-1]} that are here")
    return allowed


def _core(device: Device, number: int) -> Device:
    """Return one core of a device: its share of the device's memory, as LNC gives it."""

    def share(size: int | None) -> int | None:
        return None if size is None else size // device.cores

    memory, used = share(device.memory_total), share(device.memory_used)
    return device._replace(number=number, memory_total=memory, memory_used=used, card=device.number, cores=1)


def _links(links: Iterable[Link], members: Mapping[int, range]) -> Iterable[Link]:
    """Yield links that join the cores of a device, and the first cores of linked devices: NeuronLink reaches all."""
    for numbers in members.values():
        yield from (Link(numbers[0], other, "NeuronLink") for other in numbers[1:])
    for link in links:
        if link.first in members and link.second in members:
            yield Link(members[link.first][0], members[link.second][0], link.kind)


# --- which of them --------------------------------------------------------------------------------------------------


def choose_cores(there: tuple[Device, ...], preferred: tuple[Device, ...], ranks: int) -> dict[str, Value]:
    """Choose a row of cores that starts at a multiple of its length, near the preferred ones, where there is one."""
    numbers = {core.number for core in there}
    starts = [start for start in range(0, max(numbers, default=0) + 1, ranks) if _row(start, ranks) <= numbers]
    wanted = min((core.number for core in preferred), default=0)
    start = min(starts, key=lambda start: (abs(start - wanted), start), default=None)
    row = tuple(core.number for core in preferred) if start is None else tuple(_row(start, ranks))
    cards = format_id_list(tuple({core.card or 0 for core in there if core.number in row}))
    because = f"{ranks} of {len(there)} logical NeuronCores, those of device {cards}"
    if start is None:
        return {VISIBLE: Value(format_id_list(row), f"{because}; no free row starts at a multiple of {ranks}")}
    instead = ("all: the runtime would reserve cores that no rank uses, for no other server to have",)
    aligned = f"{because}; a row that starts at a multiple of {ranks}, as collectives want" if ranks > 1 else because
    return {VISIBLE: Value(format_id_list(row), aligned, instead if ranks < len(there) else ())}


def _row(start: int, ranks: int) -> set[int]:
    return set(range(start, start + ranks))
