"""Parses the output of Intel's xpu-smi, XPU Manager 1.0 to 2.0. Pure. Each parse_* raises ValueError.

Devices are read from CSV or JSON, or else from lines `name: value`, boxed before version 2.1, or the table that version
2 prints without arguments, where it has no `discovery`. Topologies are text: only `topology -d` has JSON. Fields are
found by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from entrypoints.core.parse import parse_id_list
from entrypoints.facts.probes.common.printed import bus_of, is_unknown, json_in, number_of, size_of, word_of
from entrypoints.facts.probes.common.tools import parse_error


class Xpu(NamedTuple):
    """One card as xpu-smi prints it."""

    number: int
    name: str = ""
    bus: str = ""
    memory: int | None = None
    used: int | None = None
    tiles: int | None = None
    state: str = ""
    driver: str = ""


class XpuSmiTopology(NamedTuple):
    """A topology: kinds of links between `card/tile` labels, and the CPUs near each of them."""

    links: tuple[tuple[str, str, str], ...]
    cpus: Mapping[str, tuple[int, ...]]


_RULE = re.compile(r"^[ \t]*\+[-=]", re.MULTILINE)
_TILE = re.compile(r"GPU (\d{1,3}(?:/\d{1,2})?)")
_USAGE = re.compile(r"(\d{1,9}\s*MiB|N/A)\s*/\s*(\d{1,9})\s*MiB")
_FIELD = re.compile(r"[\s|]*(?:(\d{1,3})[\s|]*)?([A-Z][\w /-]{1,60}):\s+(\S.{0,200}?)[\s|]*$")
_WRAPPED = re.compile(r"\|\s{2,}([A-Za-z][^|]{0,40})(?:\|\s*)+$")
"""The rest of a name that is too long for its cell, in a row of its own."""
_HEAD = re.compile(r"\s*(\d{1,3})  ?(\S.{0,200}?)\s{2,}")


# --- devices --------------------------------------------------------------------------------------------------------


def parse_discovery(text: str) -> tuple[Xpu, ...]:
    """Parse `xpu-smi discovery` as JSON (-j), CSV (--dump) or lines of text, or the table of version 2."""
    value = json_in(text)
    if value is not None:
        xpus = _from_json(value)
    elif "Device Information" in text:
        xpus = _from_lines(text)
    elif _RULE.search(text):
        xpus = _from_table(text)
    else:
        xpus = _from_csv(text)
    if not xpus:
        raise parse_error(text.strip() or "nothing", "xpu-smi's devices, as JSON, CSV or version 2's table")
    return xpus


def _make_xpu(fields: Mapping[str, Any], place: int) -> Xpu:
    """Return a card from its fields, whose names are in lower case with underscores."""
    number = number_of(fields.get("device_id"))
    memory = size_of(fields.get("memory_physical_size_byte", "")) or size_of(fields.get("memory_physical_size", ""))
    return Xpu(
        number=place if number is None else number,
        name=word_of(fields.get("device_name")),
        bus=bus_of(fields.get("pci_bdf_address")),
        memory=memory or None,
        tiles=number_of(fields.get("number_of_tiles")),
        state=word_of(fields.get("device_state")),
        driver=word_of(fields.get("driver_version")),
    )


def _from_json(value: Any) -> tuple[Xpu, ...]:
    if isinstance(value, dict):
        lists = (value.get(key) for key in ("device_list", "devices"))
        value = next((item for item in lists if isinstance(item, list)), [value] if "device_id" in value else [])
    return tuple(_make_xpu(item, place) for place, item in enumerate(value) if isinstance(item, dict))


def _from_csv(text: str) -> tuple[Xpu, ...]:
    import csv

    try:
        rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) > 1]
    except csv.Error as error:
        raise parse_error(text, "CSV") from error
    start = next((place for place, row in enumerate(rows) if "device_id" in map(_normalize_key, row)), len(rows))
    heads = [_normalize_key(head) for head in rows[start]] if start < len(rows) else []
    wrong = next((row for row in rows[start + 1 :] if len(row) != len(heads)), None)
    if wrong:
        raise parse_error(",".join(wrong), f"{len(heads)} values: {', '.join(heads)}")
    return tuple(_make_xpu(dict(zip(heads, row, strict=True)), place) for place, row in enumerate(rows[start + 1 :]))


def _from_lines(text: str) -> tuple[Xpu, ...]:
    """Parse lines `name: value`, with the device's number before the first one of each."""
    devices: list[dict[str, str]] = []
    for match in map(_FIELD.match, text.splitlines()):
        if match and match[1]:
            devices.append({"device_id": match[1]})
        if match and devices:
            devices[-1].setdefault(_normalize_key(match[2]), match[3])
    return tuple(_make_xpu(fields, place) for place, fields in enumerate(devices))


def _from_table(text: str) -> tuple[Xpu, ...]:
    """Parse two lines per device: number, name and bus, then used and total memory."""
    xpus: list[Xpu] = []
    for line in text.splitlines():
        head, bus, usage = _HEAD.match(line.strip().strip("|")), bus_of(line), _USAGE.search(line)
        if head and bus:
            xpus.append(Xpu(int(head[1]), name=word_of(head[2]), bus=bus))
        elif xpus and usage:
            used_bytes = None if is_unknown(usage[1]) else int(usage[1].removesuffix("MiB")) << 20
            xpus[-1] = xpus[-1]._replace(used=used_bytes, memory=int(usage[2]) << 20)
        elif xpus and not xpus[-1].memory and (wrapped := _WRAPPED.match(line.strip())):
            xpus[-1] = xpus[-1]._replace(name=f"{xpus[-1].name} {wrapped[1].strip()}")
    return tuple(xpus)


def _normalize_key(text: str) -> str:
    return text.strip().lower().replace(" ", "_")


# --- links ----------------------------------------------------------------------------------------------------------


def parse_xpu_topology(text: str) -> XpuSmiTopology:
    """Parse `xpu-smi topology -m`, a matrix of tiles, or `-d`, one device's CPUs in a box."""
    lines = [line for line in text.splitlines() if line.strip()]
    places = _one_device(lines) if _RULE.search(text) else _parse_matrix(lines)
    if places is None:
        raise parse_error(lines[0] if lines else "nothing", "a matrix with heads `GPU 0/0`, or a box with a CPU list")
    return places


def _one_device(lines: Iterable[str]) -> XpuSmiTopology | None:
    number, cpus = "", ""
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) > 1 and number_of(cells[0]) is not None:
            number = cells[0]
        if len(cells) > 1 and cells[1].startswith("Local CPU List:"):
            cpus = cells[1].partition(":")[2].strip()
    return XpuSmiTopology((), {number: _parse_xpu_cpus(cpus)}) if number else None


def _parse_matrix(lines: list[str]) -> XpuSmiTopology | None:
    """Parse the matrix. Older versions separate its columns by bars, later ones by blanks."""
    start = next((number for number, line in enumerate(lines) if line.strip().startswith("GPU ")), len(lines))
    labels = _TILE.findall(lines[start]) if start < len(lines) else []
    if not labels:
        return None
    links: list[tuple[str, str, str]] = []
    cpus: dict[str, tuple[int, ...]] = {}
    for line in lines[start + 1 :]:
        row = _TILE.match(line.strip())
        cells = line.strip()[row.end() :].replace("|", " ").split() if row else []
        if not row or len(cells) < len(labels):
            break
        links += [(row[1], label, kind) for label, kind in zip(labels, cells, strict=False) if label != row[1]]
        cpus[row[1]] = _parse_xpu_cpus("".join(cells[len(labels) :]))
    if len(cpus) < len(labels):
        raise parse_error(lines[start], "a row for each GPU of the header")
    return XpuSmiTopology(tuple(links), cpus)


def _parse_xpu_cpus(text: str) -> tuple[int, ...]:
    try:
        return parse_id_list(text)
    except ValueError as error:
        raise parse_error(text, "CPU numbers, such as 0-23,48-71") from error
