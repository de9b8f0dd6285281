"""What a recorded host says of its Ascend chips: their addresses, and their places in a super pod. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from drydock.core.errors import InputError

Commands = Mapping[str, Mapping[str, Any]]
"""A recorded host's `commands`: command → rc and stdout."""
_FIELD = re.compile(r"^[ \t]*([A-Za-z][A-Za-z0-9 _-]{0,60}?)[ \t]*[:=][ \t]*(\S+)[ \t\r]*$", re.MULTILINE)
_LONGEST = 1 << 16
"""Characters of a command's output that are read."""


def read_chip_address(commands: Commands, device: int, kind: str = "-ip") -> str:
    """Return a chip's address from `hccn_tool -i N -ip -g` (`ipaddr:10.20.0.20`; -vnic: `vnic ipaddr:…`).

    Raises InputError.
    """
    command = f"hccn_tool -i {device} {kind} -g"
    fields = _parse_fields(commands, command).items()
    text = next((value for name, value in fields if name.split()[-1] == "ipaddr"), "")
    try:
        number = ipaddress.IPv4Address(text)
    except ValueError:
        raise InputError(f"{command}: found {text!r} as ipaddr, expected an IPv4 address") from None
    if number.is_unspecified or number.is_loopback or number.is_multicast:
        raise InputError(f"{command}: found {text}, expected the address of an interface")
    return str(number)


def read_chip_super_pod(commands: Commands, device: int) -> tuple[str, str] | None:
    """Return a chip's super pod and its number there (A3); None if `npu-smi info -t spod-info` was not recorded.

    Raises InputError for an output without them.
    """
    if not any(command.startswith("npu-smi info -t spod-info ") for command in commands):
        return None
    card, chip = _find_card(commands, device)
    command = f"npu-smi info -t spod-info -i {card} -c {chip}"
    fields = _parse_fields(commands, command)
    numbers = fields.get("super pod id", ""), fields.get("sdid", "")
    if not all(re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) for text in numbers):
        raise InputError(f"{command}: found Super Pod ID {numbers[0]!r} and SDID {numbers[1]!r}, expected numbers")
    return str(int(numbers[0])), str(int(numbers[1]))


def _find_card(commands: Commands, device: int) -> tuple[int, int]:
    """Return a device's card and chip from `npu-smi info -m`. Raises InputError."""
    command = "npu-smi info -m"
    lines = [
        re.split(r"\s{2,}", line.strip())
        for line in _read_command_output(commands, command).splitlines()
        if line.strip()
    ]
    head = lines[0] if lines else []
    column = "Chip Phy-ID" if "Chip Phy-ID" in head else "Chip Logic ID"
    absent = {"NPU ID", "Chip ID", column} - {*head}
    if absent:
        raise InputError(
            f"{command}: found no column {', '.join(sorted(absent))}, expected a table of NPU ID, Chip ID …"
        )
    for row in lines[1:]:
        cells = dict(zip(head, row, strict=False))
        if cells.get(column) == str(device):
            return _parse_chip_number(command, cells["NPU ID"]), _parse_chip_number(command, cells["Chip ID"])
    raise InputError(f"{command}: found no device {device}")


def _parse_chip_number(command: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII):
        raise InputError(f"{command}: found {text!r} as NPU ID or Chip ID, expected a number")
    return int(text)


def _parse_fields(commands: Commands, command: str) -> dict[str, str]:
    """Return the fields of a command's output, with names in lower case; the first of each name counts."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(_read_command_output(commands, command)):
        fields.setdefault(name.lower(), value)
    return fields


def _read_command_output(commands: Commands, command: str) -> str:
    """Return a recorded command's output. Raises InputError if it is absent, failed or is too long."""
    record = commands.get(command)
    if record is None:
        raise InputError(f"{command}: not recorded")
    if record.get("rc") != 0:
        raise InputError(f"{command}: ended with {record.get('rc')}")
    text = record.get("stdout")
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise InputError(f"{command}: expected at most {_LONGEST} characters of output")
    return text
