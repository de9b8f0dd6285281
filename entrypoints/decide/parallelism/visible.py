"""The devices that the user selects by a variable of the vendor's runtime. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.parse import format_id_list, parse_id_list, parse_number
from entrypoints.core.records import Device, Facts
from entrypoints.facts.derived import MISSING_CHOICE
from entrypoints.request.vllm_flags import UserFlags


def _get_device_number(device: Device) -> int:
    return device.number


def chosen_by(user_flags: UserFlags, variables: Iterable[str]) -> str:
    """Return the first of the variables that the user set; empty if none is set."""
    return next((name for name in variables if user_flags.variable(name) is not None), "")


def restrict_to_visible(facts: Facts, user_flags: UserFlags, variables: tuple[str, ...]) -> Facts:
    """Return the facts with only the devices that the user's variable selects, in its order.

    Only the runtime knows names that are not numbers (GPU-…), so with such names every device stays.
    Raises USAGE for numbers of missing devices, HOST if the variable hides every device.
    """
    name = chosen_by(user_flags, variables)
    if not name:
        return facts
    words = [word.strip() for word in (user_flags.variable(name) or "").split(",")]
    if not all(word.partition(".")[0].lstrip("-").isdigit() for word in words):
        return facts
    by_number = {device.number: device for device in facts.devices}
    if words == ["-1"]:
        raise EntrypointError(HOST, f"{name}=-1 hides every device", f"unset {name}")
    return facts._replace(devices=tuple(_find_named_device(name, word, by_number) for word in dict.fromkeys(words)))


def restricted_by_number(
    facts: Facts, user_flags: UserFlags, variable: str, number: Callable[[Device], int] = _get_device_number
) -> Facts:
    """Return the facts with only the devices that the user's variable lists, in device order. Raises USAGE."""
    text = user_flags.variable(variable)
    if text is None:
        return facts
    try:
        numbers = parse_id_list(text)
    except ValueError as error:
        raise EntrypointError(USAGE, f"{variable}={text}: expected device numbers, such as 0,1") from error
    present = tuple(sorted({number(device) for device in facts.devices}))
    missing = next((item for item in numbers if item not in present), None)
    if present and missing is not None:
        raise _make_missing_error(variable, str(missing), format_id_list(present))
    return facts._replace(devices=tuple(device for device in facts.devices if number(device) in numbers))


def check_probed_choice(facts: Facts) -> None:
    """Raise USAGE if the variable that the probe applied names a missing device."""
    choice = [facts.kernel.get(name, "") for name in MISSING_CHOICE]
    if choice[1]:
        raise _make_missing_error(*choice)


def _make_missing_error(variable: str, word: str, present: str) -> EntrypointError:
    return EntrypointError(USAGE, f"{variable} names {word}: no such device", f"available devices: {present}")


def _find_named_device(name: str, word: str, by_number: dict[int, Device]) -> Device:
    try:
        return by_number[parse_number(word.partition(".")[0])]
    except (KeyError, ValueError) as error:
        raise _make_missing_error(name, word, format_id_list(tuple(by_number))) from error
