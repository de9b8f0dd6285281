"""`--modules`: Gaudi's cards by module, which is another numbering than that of `--devices`.

`hl-smi -Q index,module_id -f csv` prints both numbers. The container runtime reads the first from
HABANA_VISIBLE_DEVICES; Gaudi's software in the container reads the second from HABANA_VISIBLE_MODULES. Source: the
Gaudi2E manuals, 2.1 (-m).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from drydock.core.errors import InputError
from drydock.model.variant import Variant
from drydock.run.machine import Machine

MODULES_VARIABLE = "HABANA_VISIBLE_MODULES"
_FILES = "/sys/class/accel/accel[0-9]*/device/module_id"


class ChosenModules(NamedTuple):
    """The cards of --modules."""

    numbers: tuple[int, ...]
    """The modules, as given."""
    devices: tuple[int, ...] | None
    """Their device numbers; None if this machine does not state them, so that all cards are passed."""
    absent: tuple[str, ...]
    """What this machine lacks."""


def choose_modules(variant: Variant, numbers: tuple[int, ...], machine: Machine) -> ChosenModules:
    """Return the cards that have these modules. Raises InputError for an accelerator without modules."""
    if MODULES_VARIABLE not in variant.variables.devices:
        text = ",".join(map(str, numbers))
        raise InputError(f"--modules {text}: {variant.id} has no modules", hint="choose cards with --devices")
    device_by_module = _read_devices(machine)
    absent = tuple(
        f"no module {number} among {_FILES}"
        for number in numbers
        if device_by_module and number not in device_by_module
    )
    devices = tuple(device_by_module[number] for number in numbers if number in device_by_module)
    return ChosenModules(numbers, devices if device_by_module else None, absent)


def _read_devices(machine: Machine) -> Mapping[int, int]:
    """Return module → device number, as the driver's files state; empty if any of them does not."""
    paths = machine.matches(_FILES)
    modules = {_number_of(path): machine.number(path) for path in paths}
    device_by_module = {module: device for device, module in modules.items() if module is not None}
    return device_by_module if len(device_by_module) == len(paths) else {}


def _number_of(path: str) -> int:
    """Return the card's number in the path of one of its files."""
    return int(path.removeprefix("/sys/class/accel/accel").partition("/")[0])
