"""Devices that the user's own variable chooses, for runtimes that number devices and obey such a variable. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.parse import parse_id_list, parse_number
from entrypoints.core.records import Device, Facts
from entrypoints.request.vllm_flags import UserFlags


def _number(device: Device) -> int:
    return device.number


def chosen_by(given: UserFlags, variables: Iterable[str]) -> str:
    """Return the first of some variables that the user set; empty where none is."""
    return next((name for name in variables if given.variable(name) is not None), "")


def restricted(facts: Facts, given: UserFlags, variables: tuple[str, ...]) -> Facts:
    """Return the facts with the devices alone that the user's variable leaves, in its order.

    Names that are no numbers (GPU-…) cannot be looked up here: the runtime knows them, so every device stays.
    Raises USAGE for numbers that are not there, HOST where the variable hides every device.
    """
    name = chosen_by(given, variables)
    words = [word.strip() for word in (given.variable(name) or "").split(",")] if name else []
    if not words or not all(word.partition(".")[0].lstrip("-").isdigit() for word in words):
        return facts
    there = {device.number: device for device in facts.devices}
    if words == ["-1"]:
        raise EntrypointError(HOST, f"{name}=-1 hides every device", f"unset {name}")
    return facts._replace(devices=tuple(_device(name, word, there) for word in dict.fromkeys(words)))


def shown(facts: Facts, given: UserFlags, variable: str, number: Callable[[Device], int] = _number) -> Facts:
    """Return the facts with only the devices that the user's variable numbers, in their own order. Raises USAGE."""
    text = given.variable(variable)
    if text is None:
        return facts
    try:
        numbers = parse_id_list(text)
    except ValueError as error:
        raise EntrypointError(USAGE, f"{variable}={text}: expected device numbers, such as 0,1") from error
    return facts._replace(devices=tuple(device for device in facts.devices if number(device) in numbers))


def _device(name: str, word: str, there: dict[int, Device]) -> Device:
    try:
        return there[parse_number(word.partition(".")[0])]
    except (KeyError, ValueError) as error:
        known = ", ".join(map(str, there))
        raise EntrypointError(USAGE, f"{name} names {word}: no such device is here", f"there are {known}") from error
