"""Google TPU chips: reads PCI functions and device files, then `tpu-info` for their use and free memory.

The generation of a chip determines its memory, so files are enough. tpu-info prints memory only while a framework runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from os.path import basename
from typing import NamedTuple

from entrypoints.core.parse import parse_line
from entrypoints.core.records import Device, ProbeResult
from entrypoints.core.units import GIB
from entrypoints.facts.probes.common import pci
from entrypoints.facts.probes.common.printed import is_unknown
from entrypoints.facts.probes.common.tools import parse_error, run_tool
from entrypoints.host.host import Host, Run

VENDOR = "0x1ae0"
GENERATIONS = {
    "0x0027": "v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "v7x",
}
"""PCI device id → generation, from tpu_info/device.py and jax/_src/hardware_utils.py. Other ids are not TPUs."""

V2 = "0x004e"
"""Subsystem id of a v2, which has the same device id as a v3."""

DIES = {"v2": 2, "v3": 2, "v7x": 2}
"""Devices per chip in the runtime, if more than one (tpu_info/device.py, devices_per_chip)."""

MOST_CHIPS = {"v7x": 4}
"""Chips of the largest host, where a chip can have several PCI slots (machine type tpu7x-standard-4t)."""

ACCEL = "/dev/accel[0-9]*"
VFIO = "/dev/vfio/[0-9]*"
GROUPS = "/sys/kernel/iommu_groups/*/devices/*"
COMMAND = ("tpu-info",)
DEVICE_TOOL = COMMAND

_TYPE = re.compile(r"TPU\s*v?(\d\w*)")
_USAGE = re.compile(r"([\d.]{1,12})\s*GiB\s*/\s*([\d.]{1,12})\s*GiB")
_LIBTPU = re.compile(r"libtpu version:\s*(\d[\w.+]*)", re.IGNORECASE)


class TpuInfoChip(NamedTuple):
    """A row of tpu-info's first table."""

    path: str
    generation: str
    busy: bool | None


class TpuInfoOutput(NamedTuple):
    """The output of tpu-info."""

    chips: tuple[TpuInfoChip, ...] = ()
    usage: tuple[tuple[int, int] | None, ...] = ()
    """Used and total bytes of each device, in order; empty if no framework runs."""
    libtpu: str = ""


class TpuDevice(NamedTuple):
    """One device in /sys."""

    generation: str
    bus: str
    node: int | None
    cpus: tuple[int, ...]
    card: int | None


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the TPU devices of this container, in the order of TPU_VISIBLE_CHIPS."""
    places = _list_tpu_devices(host)
    paths = host.glob(ACCEL) or host.glob(VFIO)
    generation = generation_of(env.get("TPU_ACCELERATOR_TYPE", ""))
    if not places and not (paths and (generation or paths[0].startswith("/dev/accel"))):
        return ProbeResult()
    answer = run_tool(host, run, COMMAND, parse_tpu_info) or TpuInfoOutput()
    tpu_devices = places or _list_unplaced_devices(host, paths, generation, answer)
    groups = {basename(path): f"/dev/vfio/{path.split('/')[4]}" for path in host.glob(GROUPS)}
    shared = len(paths) < len(tpu_devices)
    devices = tuple(
        _make_tpu_device(number, place, _find_tpu_file(place, number, paths, groups, shared=shared))
        for number, place in enumerate(tpu_devices)
    )
    usable_devices = tuple(device for device in devices if device.path or not paths)
    return ProbeResult(_with_usage(usable_devices, answer), versions={"libtpu": answer.libtpu} if answer.libtpu else {})


def generation_of(accelerator_type: str) -> str:
    """Return the generation in TPU_ACCELERATOR_TYPE: v5litepod-4 → v5e, v6e-8 → v6e, tpu7x-8 → v7x; else empty."""
    words = accelerator_type.strip().lower().removeprefix("tpu").lstrip("-")
    name = words.partition("-")[0].removeprefix("v")
    if not name[:1].isdigit():
        return ""
    return "v5e" if words.startswith(("v5lite", "v5-lite")) else f"v{name}"


# --- files ----------------------------------------------------------------------------------------------------------


def _list_tpu_devices(host: Host) -> tuple[TpuDevice, ...]:
    """Return the devices of Google's PCI functions by address. A chip with two dies counts as two."""
    chips = _group_by_chip(pci.find_pci_functions(host, VENDOR, tuple(GENERATIONS)))
    return tuple(place for card, members in enumerate(chips) for place in _list_chip_devices(host, card, members))


def _group_by_chip(functions: tuple[pci.Pci, ...]) -> list[list[pci.Pci]]:
    """Return the functions of each chip. Those of a v7x can be in several slots of a bus that no other chip is on.

    In a virtual machine all chips may be on one bus: a slot is a chip then, or as many slots as the host's size says.
    """
    most = MOST_CHIPS.get(GENERATIONS[functions[0].device], 0) if functions else 0
    buses = {function.bus.rpartition(":")[0] for function in functions}
    separator = ":" if most and len(buses) > 1 else "."
    chips: dict[str, list[pci.Pci]] = {}
    for function in functions:
        chips.setdefault(function.bus.rpartition(separator)[0], []).append(function)
    slots = list(chips.values())
    if not most or len(slots) <= most:
        return slots
    width = -(-len(slots) // most)
    return [
        [function for slot in slots[first : first + width] for function in slot]
        for first in range(0, len(slots), width)
    ]


def _list_chip_devices(host: Host, card: int, members: list[pci.Pci]) -> Iterator[TpuDevice]:
    generation = GENERATIONS[members[0].device]
    subsystem = f"/sys/bus/pci/devices/{members[0].bus}/subsystem_device"
    if generation == "v3" and host.parsed(subsystem, parse_line, "") == V2:
        generation = "v2"
    dies = DIES.get(generation, 1)
    functions = members[:dies] if len(members) >= dies else members[:1] * dies
    for function in functions:
        yield TpuDevice(generation, function.bus, function.node, function.cpus, card if dies > 1 else None)


def _list_unplaced_devices(
    host: Host, paths: tuple[str, ...], named_generation: str, answer: TpuInfoOutput
) -> tuple[TpuDevice, ...]:
    """Return devices that exist only in /dev, as in a sandbox without /sys. The environment or tpu-info names them.

    A device file is a chip, which can have two dies.
    """
    generation = named_generation or next((chip.generation for chip in answer.chips if chip.generation), "")
    if not generation:
        expected = "Google's PCI functions in /sys, or TPU_ACCELERATOR_TYPE such as v6e-8"
        host.fail(paths[0], "a TPU of unknown generation", expected)
    dies = DIES.get(generation, 1)
    cards = [card for card in range(len(paths)) for _ in range(dies)]
    return tuple(TpuDevice(generation, "", None, (), card if dies > 1 else None) for card in cards)


def _find_tpu_file(
    place: TpuDevice, number: int, paths: tuple[str, ...], groups: Mapping[str, str], *, shared: bool
) -> str:
    """Return the device file: that of the IOMMU group, or if there is none, by the device's position.

    `shared` tells whether both dies of a chip have the same file.
    """
    if place.bus in groups and paths and paths[0].startswith("/dev/vfio"):
        return groups[place.bus] if groups[place.bus] in paths else ""
    index = place.card if shared and place.card is not None else number
    return paths[index] if index < len(paths) else ""


def _make_tpu_device(number: int, place: TpuDevice, path: str) -> Device:
    name = f"TPU {place.generation}" if place.generation else ""
    return Device(
        number,
        name,
        None,
        None,
        place.node,
        bus=place.bus,
        cpus=place.cpus,
        architecture=place.generation,
        path=path,
        card=place.card,
    )


def _with_usage(devices: tuple[Device, ...], answer: TpuInfoOutput) -> tuple[Device, ...]:
    """Add the use and memory of each device from tpu-info, which lists devices in the same order."""
    holders = {chip.path: chip.busy for chip in answer.chips}
    usage = answer.usage if len(answer.usage) == len(devices) else (None,) * len(devices)
    return tuple(
        device._replace(
            busy=holders.get(device.path),
            memory_used=None if chip_usage is None else chip_usage[0],
            memory_total=None if chip_usage is None else chip_usage[1],
        )
        for device, chip_usage in zip(devices, usage, strict=True)
    )


# --- tpu-info -------------------------------------------------------------------------------------------------------


def parse_tpu_info(text: str) -> TpuInfoOutput:
    """Parse tpu-info: the table of chips, and if a framework runs, the table of memory. Other tables are ignored.

    Frames are box characters, or Markdown since 0.7. Column names differ between versions.
    """
    chips: list[TpuInfoChip] = []
    usage: list[tuple[int, int] | None] = []
    for line, row in _parse_tpu_rows(text):
        memory = next((value for name, value in row.items() if name.startswith(("hbm", "memory usage"))), None)
        if "type" in row:
            chips.append(_chip_row(line, row))
        elif memory is not None:
            usage.append(_parse_hbm_usage(line, memory))
    if not chips and "no tpu chips found" not in text.lower():
        raise parse_error(text, "a table with TpuInfoChip, Type and PID")
    if len({chip.path for chip in chips}) < len(chips):
        raise parse_error(text, "each chip once")
    libtpu = _LIBTPU.search(text)
    return TpuInfoOutput(tuple(chips), tuple(usage), libtpu[1] if libtpu else "")


def _parse_tpu_rows(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row of each table, by the column names in lower case."""
    header: list[str] = []
    for line in text.splitlines():
        cells = _split_tpu_cells(line)
        if not cells:
            header = header if line.strip().startswith(("┡", "├", "╞")) else []
        elif not header:
            header = [cell.lower() for cell in cells]
        elif len(cells) != len(header):
            raise parse_error(line, f"{len(header)} columns")
        elif any(cell.strip("-:") for cell in cells):
            yield line, dict(zip(header, cells, strict=True))


def _split_tpu_cells(line: str) -> list[str]:
    """Return the cells of a row; none for titles, rules and panels."""
    inside = line.strip()
    if inside[:1] not in ("│", "┃", "|") or len(inside) < 2:  # noqa: PLR2004 - an opening and a closing frame
        return []
    cells = [cell.strip() for cell in re.split("[│┃|]", inside[1:].rstrip("│┃|"))]
    return cells if len(cells) > 1 else []


def _chip_row(line: str, row: Mapping[str, str]) -> TpuInfoChip:
    path = row.get("chip") or row.get("device") or ""
    kind = _TYPE.search(row["type"])
    if not path or (kind is None and not is_unknown(row["type"])):
        raise parse_error(line, "a chip and its type, such as /dev/vfio/0 and TPU v6e chip")
    return TpuInfoChip(path, f"v{kind[1]}" if kind else "", _is_chip_used(row.get("pid", "")))


def _is_chip_used(word: str) -> bool | None:
    """Return True if a process uses the chip; else None, because in a container the tool may not see the process."""
    return True if word[:1].isdigit() else None


def _parse_hbm_usage(line: str, text: str) -> tuple[int, int] | None:
    if any(is_unknown(part.replace("GiB", "")) for part in text.replace("N/A", "NA").split("/")):
        return None
    match = _USAGE.match(text)
    try:
        sizes = [int(float(number) * GIB) for number in match.groups()] if match else []
    except ValueError:
        sizes = []
    if not sizes or not 0 <= sizes[0] <= sizes[1]:
        raise parse_error(line, "memory such as 0.00 GiB / 31.75 GiB")
    return sizes[0], sizes[1]
