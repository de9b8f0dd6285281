"""The logical NeuronCores of the devices, which vLLM counts as ranks, and the choice among them. Pure.

A process's cores are numbered over all devices in its container, device by device (NEURON_RT_VISIBLE_CORES). Cores that
talk to each other must start at a multiple of their number. Source: Neuron SDK documentation, PyTorch NeuronX
environment variables, NEURON_RT_VISIBLE_CORES.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.parse import format_id_list, parse_id_list, parse_number
from entrypoints.core.records import Device, Facts, Link, Notice, Value
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "NEURON_RT_VISIBLE_CORES"
COUNT = "NEURON_RT_NUM_CORES"


class Cores(NamedTuple):
    """The cores that may serve, as devices of one rank each, and the user's flags with core numbers."""

    facts: Facts
    user_flags: UserFlags
    left_out: tuple[Device, ...]
    """Devices that another process holds, or that are not healthy, unless the user selected them."""


def as_cores(facts: Facts, user_flags: UserFlags) -> Cores:
    """Return every core that this container may use, each as a separate device.

    Raises USAGE for missing cores and devices, HOST if no device is free and healthy.
    """
    members = _number_cores(facts.devices)
    left_out = _left_out(facts.devices) if user_flags.intents.devices is None else ()
    free = [device for device in facts.devices if device not in left_out]
    allowed = _find_allowed_cores(user_flags, [number for numbers in members.values() for number in numbers])
    devices = tuple(
        _make_core(device, number) for device in free for number in members[device.number] if number in allowed
    )
    requested = user_flags.intents.devices
    if requested is not None:
        cores = tuple(
            number for device in requested for number in _find_cores_of_device(members, device) if number in allowed
        )
        user_flags = user_flags._replace(intents=user_flags.intents._replace(devices=cores))
    return Cores(facts._replace(devices=devices, links=tuple(_link_cores(facts.links, members))), user_flags, left_out)


def _left_out(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the devices that cannot serve. Raises HOST if no other device is left."""
    unusable = tuple(device for device in devices if device.busy or device.health not in ("", "ok"))
    if unusable and len(unusable) == len(devices):
        numbers = format_id_list(tuple(device.number for device in unusable))
        hint = f"end the processes that hold them, or select devices anyway: --devices {numbers}"
        raise EntrypointError(HOST, f"Neuron devices {numbers}: each is held by a process, or not healthy", hint)
    return unusable


def _number_cores(devices: Iterable[Device]) -> dict[int, range]:
    """Return each device's cores, numbered device by device."""
    members: dict[int, range] = {}
    start = 0
    for device in devices:
        members[device.number] = range(start, start + device.cores)
        start += device.cores
    return members


def _find_cores_of_device(members: Mapping[int, range], device: int) -> range:
    if device not in members:
        device_list = format_id_list(tuple(members)) or "none"
        raise EntrypointError(USAGE, f"--devices {device}: no such Neuron device; available devices: {device_list}")
    return members[device]


def _find_allowed_cores(user_flags: UserFlags, cores: list[int]) -> set[int]:
    """Return the cores that the user's variables allow. Raises USAGE."""
    visible, count = user_flags.variable(VISIBLE), user_flags.variable(COUNT)
    try:
        if visible is not None:
            allowed = set(parse_id_list(visible))
        else:
            allowed = set(cores[: parse_number(count)] if count else cores)
    except ValueError as error:
        setting = f"{VISIBLE}={visible}" if visible is not None else f"{COUNT}={count}"
        raise EntrypointError(USAGE, f"{setting}: expected core numbers, such as 0-7, or their count") from error
    missing = sorted(allowed - set(cores))
    if cores and (missing or not allowed):
        problem = f"names {missing[0]}: no such core" if missing else "names no core"
        hint = f"available cores: {format_id_list(tuple(cores))}"
        raise EntrypointError(USAGE, f"{VISIBLE}={visible} {problem}", hint)
    return allowed & set(cores)


def _make_core(device: Device, number: int) -> Device:
    """Return one core of a device, with an equal share of the device's memory (LNC)."""

    def share(size: int | None) -> int | None:
        return None if size is None else size // device.cores

    memory, memory_used = share(device.memory_total), share(device.memory_used)
    return device._replace(number=number, memory_total=memory, memory_used=memory_used, card=device.number, cores=1)


def _link_cores(links: Iterable[Link], members: Mapping[int, range]) -> Iterable[Link]:
    """Yield links between the cores of a device, and between the first cores of linked devices."""
    for numbers in members.values():
        yield from (Link(numbers[0], core, "NeuronLink") for core in numbers[1:])
    for link in links:
        if link.first in members and link.second in members:
            yield Link(members[link.first][0], members[link.second][0], link.kind)


# --- the choice -----------------------------------------------------------------------------------------------------


def choose_cores(
    available: tuple[Device, ...], preferred: tuple[Device, ...], ranks: int, engines: int = 1
) -> dict[str, Value]:
    """Choose consecutive cores that start at a multiple of their number, close to the preferred ones, if possible."""
    if engines > 1:
        return _choose_rows(available, preferred, ranks, engines)
    starts = _list_row_starts(available, ranks)
    preferred_start = min((core.number for core in preferred), default=0)
    start = min(starts, key=lambda start: (abs(start - preferred_start), start), default=None)
    row = tuple(core.number for core in preferred) if start is None else tuple(_make_core_row(start, ranks))
    cards = tuple({core.card or 0 for core in available if core.number in row})
    where = f"device{'s' * (len(cards) > 1)} {format_id_list(cards)}"
    because = f"{ranks} of {len(available)} logical NeuronCores, on {where}"
    if start is None:
        because = f"{because}; no {ranks} free cores in a row start at a multiple of {ranks}"
        return {VISIBLE: Value(format_id_list(row), because)}
    instead = ("all: the runtime would reserve cores that no rank uses, and no other server could use them",)
    if ranks > 1:
        because = f"{because}; ranks that exchange data need cores in a row that start at a multiple of {ranks}"
    return {VISIBLE: Value(format_id_list(row), because, instead if ranks < len(available) else ())}


def _list_row_starts(available: tuple[Device, ...], ranks: int) -> list[int]:
    numbers = {core.number for core in available}
    return [start for start in range(0, max(numbers, default=0) + 1, ranks) if _make_core_row(start, ranks) <= numbers]


def _choose_rows(
    available: tuple[Device, ...], preferred: tuple[Device, ...], ranks: int, engines: int
) -> dict[str, Value]:
    """Choose a row of cores for each engine, as a list without ranges: vLLM divides it among its engines."""
    starts = _list_row_starts(available, ranks)
    row = sorted(number for start in starts[:engines] for number in _make_core_row(start, ranks))
    if len(starts) < engines:
        row = sorted(core.number for core in preferred)
    because = f"{len(row)} of {len(available)} logical NeuronCores: {engines} rows of {ranks}, one for each engine"
    return {VISIBLE: Value(",".join(map(str, row)), because)}


def _make_core_row(start: int, ranks: int) -> set[int]:
    return set(range(start, start + ranks))


def idle_cores(available: tuple[Device, ...], row: tuple[int, ...], ranks: int) -> Iterator[Notice]:
    """Yield a notice with the cores that no rank uses, and the further servers that can use them."""
    idle = {core.number for core in available} - set(row)
    if not idle:
        return
    starts = [start for start in range(0, max(idle) + 1, ranks) if _make_core_row(start, ranks) <= idle]
    rows = "; ".join(format_id_list(tuple(_make_core_row(start, ranks))) for start in starts)
    use = f"start {len(starts)} more behind a router, each with {VISIBLE} of one row: {rows}"
    if not starts:
        use = f"start another with a smaller -tp and {VISIBLE}={format_id_list(tuple(sorted(idle)))}"
    yield make_notice("NRN-004", f"cores {format_id_list(tuple(sorted(idle)))} of {len(available)}", "none", use=use)
