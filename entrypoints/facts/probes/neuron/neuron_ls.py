"""Parses the output of `neuron-ls` of Neuron 1.12 to 2.32. Pure.

With -j it prints JSON (2023 and later). The columns of its table depend on the version, the machine, and whether
processes use devices. The heading of a column takes two or three lines, with one word in each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.core.parse import parse_id_list, parse_number
from entrypoints.facts.probes.common.printed import is_unknown, load_printed_json
from entrypoints.facts.probes.common.tools import parse_error

_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
"""neuron-ls writes GB for 2**30: 96 GB where its JSON says 103079215104."""

_SIZE = re.compile(r"(\d{1,12})\s*([KMGT]i?B|B|)", re.IGNORECASE)
_BUS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_TITLE = re.compile(r"([a-z][a-z-]*):\s*(\S+)")


class NeuronLsDevice(NamedTuple):
    """One device as neuron-ls lists it."""

    number: int
    cores: int
    """Logical NeuronCores: what NEURON_RT_VISIBLE_CORES counts."""
    memory: int | None
    bus: str
    """0000:cc:00.0; empty if the tool does not print it."""
    connected: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    node: int | None = None
    processes: int = 0
    """Number of processes that use it."""
    runtime: str = ""
    """Version of the Neuron runtime in a process that uses it."""


class Listing(NamedTuple):
    """All devices, and the type of the machine."""

    rows: tuple[NeuronLsDevice, ...]
    instance: str = ""
    """EC2 instance type, such as trn2.48xlarge."""
    grouping: str = ""
    """Physical NeuronCores per logical one (LNC); empty if the tool does not print it."""


def bus_address(text: str) -> str:
    """Return a PCI address with a domain of four digits: `cc:00.0` → 0000:cc:00.0; empty for N/A. Raises ValueError."""
    if is_unknown(text):
        return ""
    match = _BUS.fullmatch(text.strip())
    if not match:
        raise parse_error(text, "a PCI address such as 0000:cc:00.0")
    return f"{(match[1] or '0000')[-4:]}:{match[2]}".lower()


def parse_neuron_size(text: str) -> int | None:
    """Return the bytes of `96 GB`; None for N/A. Raises ValueError."""
    if is_unknown(text):
        return None
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise parse_error(text, "a size such as 96 GB")
    return int(match[1]) * _UNITS[match[2].upper().replace("I", "")]


def _parse_node(text: str) -> int | None:
    """Return a NUMA node; None for -1 and for words, which mean unknown."""
    word = text.strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 5 else None  # noqa: PLR2004 - 65535 nodes


# --- neuron-ls -j ---------------------------------------------------------------------------------------------------


def parse_neuron_json(text: str) -> Listing:
    """Parse the JSON list of devices. Raises ValueError."""
    devices = load_printed_json(text, "the list of devices that neuron-ls -j prints")
    if not isinstance(devices, list):
        raise parse_error(text, "a list of objects, one per device")
    first: Mapping[str, Any] = devices[0] if devices else {}
    rows = tuple(_json_row(item) for item in devices)
    return Listing(rows, str(first.get("instance_type") or ""), str(first.get("logical_neuroncore_config") or ""))


def _json_row(item: Mapping[str, Any]) -> NeuronLsDevice:
    """Return one device. Newer tools print null for unknown values."""
    processes = _read_list_key(item, "neuron_processes")
    versions = (str(one.get("neuron_runtime_version") or "") for one in processes if isinstance(one, dict))
    memory = item.get("memory_size")
    unknown = memory is None or is_unknown(str(memory))
    return NeuronLsDevice(
        number=_read_count_key(item, "neuron_device"),
        cores=len(_read_list_key(item, "neuroncore_ids")) or _read_core_count(item),
        memory=None if unknown else _read_count_key(item, "memory_size"),
        bus=bus_address(str(item.get("bdf") or "")),
        connected=tuple(
            _require_whole_number(neighbour, "connected_to") for neighbour in _read_list_key(item, "connected_to")
        ),
        cpus=_parse_cpu_list(str(item.get("cpu_affinity") or "")),
        node=_parse_node(str(item.get("numa_node", ""))),
        processes=len(processes),
        runtime=next(filter(None, versions), ""),
    )


def _read_list_key(item: Mapping[str, Any], key: str) -> list[Any]:
    value = item.get(key) or []
    if isinstance(value, str) and is_unknown(value):
        return []
    if not isinstance(value, list):
        raise parse_error(f"{key}: {value!r}", "a list")
    return value


def _read_count_key(item: Mapping[str, Any], key: str) -> int:
    return _require_whole_number(item.get(key), key)


def _read_core_count(item: Mapping[str, Any]) -> int:
    return 0 if is_unknown(str(item.get("nc_count", 0))) else _read_count_key(item, "nc_count")


def _require_whole_number(value: object, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise parse_error(f"{key}: {value!r}", "a whole number")
    try:
        return parse_number(str(value))
    except ValueError as error:
        raise parse_error(f"{key}: {value!r}", "a whole number") from error


def _parse_cpu_list(text: str) -> tuple[int, ...]:
    try:
        return () if is_unknown(text) else parse_id_list(text)
    except ValueError as error:
        raise parse_error(text, "a list of CPUs such as 0-47,96-143") from error


# --- neuron-ls ------------------------------------------------------------------------------------------------------


def parse_neuron_table(text: str) -> Listing:
    """Parse the table, with or without -t, -w and processes. Raises ValueError."""
    titles: dict[str, str] = {}
    heading: list[list[str]] = []
    rows: list[NeuronLsDevice] = []
    for line in text.splitlines():
        if not line.lstrip().startswith("|"):
            title = _TITLE.match(line.strip())
            if title and not heading:
                titles[title[1]] = title[2]
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not rows and not any(map(str.isdecimal, cells)):  # no heading is a number, and a device has one
            heading.append(cells)
        else:
            _add_neuron_row(rows, _name_cells(heading, cells, line), line)
    if not rows:
        raise parse_error(" | ".join(heading[-1]) if heading else text, "a table with a line for each NEURON DEVICE")
    return Listing(tuple(rows), titles.get("instance-type", ""), titles.get("logical-neuroncore-config", ""))


def _name_cells(heading: list[list[str]], cells: list[str], line: str) -> dict[str, str]:
    """Return the cells of a line by column name: NEURON above DEVICE is `NEURON DEVICE`."""
    if not heading or {len(cells)} != {len(names) for names in heading}:
        raise parse_error(line, "as many cells as in the heading")
    names = (" ".join(" ".join(column).split()).upper() for column in zip(*heading, strict=True))
    return dict(zip(names, cells, strict=True))


def _add_neuron_row(rows: list[NeuronLsDevice], cells: Mapping[str, str], line: str) -> None:
    """Add a device, or another process to the last device."""
    processes = int(bool(cells.get("PID")))
    if cells.get("NEURON DEVICE"):
        rows.append(_table_row(cells, line, processes))
    elif rows:
        rows[-1] = rows[-1]._replace(processes=rows[-1].processes + processes)


def _table_row(cells: Mapping[str, str], line: str, processes: int) -> NeuronLsDevice:
    try:
        count = cells.get("LOGICAL NC") or cells["NEURON CORES"]
        cores = 0 if is_unknown(count) else parse_number(count)
        number, memory = parse_number(cells["NEURON DEVICE"]), parse_neuron_size(cells["NEURON MEMORY"])
        neighbours = cells.get("CONNECTED DEVICES", "").split(",")
        connected = tuple(parse_number(neighbour) for neighbour in neighbours if not is_unknown(neighbour))
    except (KeyError, ValueError) as error:
        expected = "a device's number, cores (4), memory (96 GB) and connected devices (12, 3)"
        raise parse_error(line, expected) from error
    bus = bus_address(cells["PCI BDF"]) if cells.get("PCI BDF") else ""
    cpus, node = _parse_cpu_list(cells.get("CPU AFFINITY", "")), _parse_node(cells.get("NUMA NODE", ""))
    return NeuronLsDevice(
        number, cores, memory, bus, connected, cpus, node, processes, cells.get("RUNTIME VERSION", "")
    )
