"""Enflame GCU cards: reads PCI functions and device files, then `efsmi` for memory, health and versions.

`efsmi` has three output formats: a list of keys for each card (-q), a table, and columns (dmon). Keys, headers and
frames differ between versions, so values are found by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.parse import is_number, parse_line, parse_untrusted_json
from entrypoints.core.records import Device, ProbeResult
from entrypoints.facts.probes.common import pci
from entrypoints.facts.probes.common.printed import is_unknown
from entrypoints.facts.probes.common.steps import first_answer
from entrypoints.facts.probes.common.tools import parse_error
from entrypoints.host.host import Host, Run

VENDOR = "0x1e36"
_KINDS = ("0x12", "0x03")
"""Processing accelerators and 3D controllers. The class of an S60 depends on its firmware."""

NODES = "/dev/gcu[0-9]*"
DRIVER = "/sys/module/enflame/version"

QUERY = ("efsmi", "-q")
TABLE = ("efsmi",)
DEVICE_TOOL = TABLE
COLUMNS = ("efsmi", "--dmon", "-c", "1")
"""One line; without a count it does not end."""

ARCHITECTURES = {"S60": "gcu300", "S60G": "gcu300"}
"""Model → target that vLLM-GCU's setup.py compiles for (-arch=gcu300)."""

MEMORY = {"S60": 42976 << 20}
"""Model → bytes, where efsmi may not read them: what it prints with error correction, which takes an eighth."""

_UNITS = {"": 1 << 20, "MB": 1 << 20, "MIB": 1 << 20, "G": 1 << 30, "GB": 1 << 30, "GIB": 1 << 30}
_SIZE = re.compile(r"(\d{1,9})(?:\.\d+)?\s*([A-Za-z]*)")
_BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])\b", re.IGNORECASE)
_CARD = re.compile(r"DEV(?:ICE)?\s*ID\s*(?::\s*)?(\d{1,4})\s*$")
_FIRST_ROW = re.compile(r"(\d{1,4})\s+(\S.*)")
_VERSIONS = re.compile(r"EFSMI\s*(?::\s*)?V?([\d.]{1,60}).{0,200}?Driver\s+Ver\s*(?::\s*)?V?([\w.]+)")


class EfsmiCard(NamedTuple):
    """One card as the tool prints it. Unknown values are None or empty."""

    number: int
    name: str = ""
    bus: str = ""
    memory: int | None = None
    """Bytes."""
    used: int | None = None
    """Bytes, including the driver's own reserve."""
    health: str = ""
    busy: bool | None = None
    uuid: str = ""


class EfsmiOutput(NamedTuple):
    """The output of one call of the tool."""

    cards: tuple[EfsmiCard, ...]
    versions: Mapping[str, str]


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the GCU cards of this container, with efsmi's numbers."""
    del env  # TOPS_VISIBLE_DEVICES selects cards; it does not say which exist
    functions = pci.find_pci_functions(host, VENDOR, kinds=_KINDS)
    nodes = {int(path.removeprefix("/dev/gcu")): path for path in host.glob(NODES) if is_number(path[8:])}
    if not functions and not nodes:
        return ProbeResult()
    answer = _run_efsmi(host, run)
    if answer is None:
        return ProbeResult(_from_files(functions, nodes), versions=_read_gcu_driver(host))
    cards = tuple(card for card in _add_pci_addresses(answer.cards, functions) if not nodes or card.number in nodes)
    missing = sorted(set(nodes) - {card.number for card in cards})
    if missing:
        host.fail("efsmi", f"no card for {nodes[missing[0]]}", "a card for each device file; one may be lost")
    cards = tuple(card if card.memory else card._replace(memory=MEMORY.get(card.name)) for card in cards)
    for card in cards:
        if card.memory is None:
            host.fail("efsmi", f"no memory size for card {card.number}", "Total Size, Mem Size or Mem for each card")
    return ProbeResult(
        tuple(_make_gcu_device(host, card, nodes.get(card.number, "")) for card in cards),
        versions={**_read_gcu_driver(host), **answer.versions},
    )


def _add_pci_addresses(cards: tuple[EfsmiCard, ...], functions: tuple[pci.Pci, ...]) -> tuple[EfsmiCard, ...]:
    """Add missing PCI addresses, in the order of the bus. The driver numbers cards in the same order."""
    if any(card.bus for card in cards) or len(cards) != len(functions):
        return cards
    return tuple(card._replace(bus=function.bus) for card, function in zip(cards, functions, strict=True))


def _run_efsmi(host: Host, run: Run) -> EfsmiOutput | None:
    """Run efsmi with the most detailed output format that it supports."""
    answer = first_answer(host, run, ((QUERY, parse_query), (TABLE, parse_efsmi_table), (COLUMNS, parse_columns)))
    if answer is None and not any(failure.where.startswith("efsmi") for failure in host.failures):
        host.fail("efsmi", "not found", "efsmi in the image (TopsRider installs it), the only source of a GCU's memory")
    return answer


def _from_files(functions: tuple[pci.Pci, ...], nodes: Mapping[int, str]) -> tuple[Device, ...]:
    """Return the cards as known from /sys and /dev only, without names and memory."""
    places = dict(enumerate(functions))
    pairs = ((number, places.get(number)) for number in sorted(nodes or places))
    return tuple(
        Device(number, "", None, None, None, path=nodes.get(number, ""))
        if at is None
        else Device(number, "", None, None, at.node, bus=at.bus, cpus=at.cpus, path=nodes.get(number, ""))
        for number, at in pairs
    )


def _read_gcu_driver(host: Host) -> dict[str, str]:
    version = host.parsed(DRIVER, parse_line, "")
    return {"driver": version} if version else {}


def _make_gcu_device(host: Host, card: EfsmiCard, path: str) -> Device:
    node, cpus = pci.read_pci_affinity(host, card.bus) if card.bus else (None, ())
    return Device(
        number=card.number,
        name=card.name,
        memory_total=card.memory,
        memory_used=card.used,
        node=node,
        health=card.health,
        busy=card.busy,
        bus=card.bus,
        cpus=cpus,
        architecture=ARCHITECTURES.get(card.name, ""),
        path=path,
        uuid=card.uuid,
    )


# --- values ---------------------------------------------------------------------------------------------------------


def parse_gcu_size(text: str, line: str) -> int | None:
    """Parse `42976 MiB`, `49120MiB` or `32G` into bytes; None for N/A. The tool's JSON has no unit, which means MiB."""
    if is_unknown(text):
        return None
    match = _SIZE.match(text.strip())
    unit = match[2].upper() if match else ""
    if match is None or unit not in _UNITS:
        raise parse_error(line, "a size such as 42976 MiB")
    return int(match[1]) * _UNITS[unit]


def parse_bus(text: str) -> str:
    """Return a PCI address as the kernel writes it; empty if there is none. The domain may be missing."""
    match = _BUS.search(text)
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16) & 0xFFFF:04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


def _strip_vendor(text: str) -> str:
    """Return the model name without the vendor, which some versions print (`Enflame S60`)."""
    name = text.strip().removeprefix("Enflame").strip()
    return "" if is_unknown(name) else name


def _one_of_each(cards: list[EfsmiCard], line: str) -> tuple[EfsmiCard, ...]:
    if not cards or len({card.number for card in cards}) < len(cards):
        raise parse_error(line, "each card once")
    return tuple(cards)


# --- efsmi -q -------------------------------------------------------------------------------------------------------

Keys = Mapping[tuple[str, str], str]
"""Section and key, both in lower case → value. The first of equal keys counts."""


def parse_query(text: str) -> EfsmiOutput:
    """Parse `efsmi -q`, with or without -d: sections of keys below each `DEV ID`, or the same as JSON."""
    listed = _from_json(text) if text.lstrip().startswith("{") else _from_sections(text)
    cards = [_parse_card_keys(number, keys) for number, keys in listed]
    versions = next((keys[_DRIVER] for _, keys in listed if keys.get(_DRIVER)), "")
    line = next((line for line in text.splitlines() if line.strip()), "")
    return EfsmiOutput(_one_of_each(cards, line), {"driver": versions} if versions else {})


_DRIVER = ("driver info", "ver")
_MEMORY = "device mem info"


def _from_sections(text: str) -> list[tuple[int, Keys]]:
    listed: list[tuple[int, dict[tuple[str, str], str]]] = []
    section = ""
    for line in text.splitlines():
        card = _CARD.match(line.strip())
        key, colon, value = line.partition(":")
        if card:
            listed.append((int(card[1]), {}))
            section = ""
        elif colon and listed:
            listed[-1][1].setdefault((section, key.strip().lower()), value.strip())
        elif line.strip(" .\t-") and line.strip().lower() != "link info":  # part of PCIe Info, without indentation
            section = line.strip().lower()
    return list(listed)


def _from_json(text: str) -> list[tuple[int, Keys]]:
    try:
        devices = parse_untrusted_json(text)["devices"]
        return [(int(device["id"]), _flatten_sections(device)) for device in devices]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise parse_error(text, '{"devices": [{"id": 0, "Device Mem Info": …}]}') from None


def _flatten_sections(device: Mapping[str, object]) -> Keys:
    sections = ((name, keys) for name, keys in device.items() if isinstance(keys, dict))
    return {(name.lower(), str(key).lower()): str(value) for name, keys in sections for key, value in keys.items()}


def _parse_card_keys(number: int, keys: Keys) -> EfsmiCard:
    health = keys.get(("device info", "health"), "")
    used_bytes, reserved = (_parse_memory_key(keys, name) for name in ("used size", "reserved size"))
    return EfsmiCard(
        number,
        _strip_vendor(keys.get(("device info", "dev name"), "")),
        _format_bus_address(keys),
        _parse_memory_key(keys, "total size") or _parse_memory_key(keys, "mem size"),
        _parse_memory_key(keys, "mem usage") if used_bytes is None else used_bytes + (reserved or 0),
        "ok" if health.lower() == "true" else "" if is_unknown(health) else health,
        None if used_bytes is None else used_bytes > 0,
        _strip_vendor(keys.get(("device info", "dev uuid"), "")),
    )


def _parse_memory_key(keys: Keys, name: str) -> int | None:
    value = keys.get((_MEMORY, name), "")
    return parse_gcu_size(value, f"{name}: {value}")


def _format_bus_address(keys: Keys) -> str:
    domain, bus, device, function = (keys.get(("pcie info", key), "") for key in ("domain", "bus", "dev", "func"))
    return parse_bus(f"{domain or '0'}:{bus}:{device}.{function}")


# --- efsmi ----------------------------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """Positions of the cells in the rows of a card, from the two headers of the table."""

    name: int
    firmware: int
    bus: int
    memory: int


def parse_efsmi_table(text: str) -> EfsmiOutput:
    """Parse the table: two headers, then two rows per card, framed by `|`, `+` or `*`."""
    rows = [(cells, line) for line in text.splitlines() if len(cells := _split_efsmi_cells(line)) > 1]
    columns = _find_columns([cells for cells, _ in rows], text)
    body = [(cells, line) for cells, line in rows if not _is_header(cells)]
    if len(body) % 2 or not body:
        raise parse_error(body[-1][1] if body else text, "two rows for each card")
    cards = [_row_pair(first, second, columns) for first, second in zip(body[::2], body[1::2], strict=True)]
    match = _VERSIONS.search(text)
    versions = {"tool": match[1], "driver": match[2]} if match else {}
    firmware = _read_efsmi_cell(body[0], columns.firmware)
    return EfsmiOutput(_one_of_each(cards, body[0][1]), versions | ({"firmware": firmware} if firmware else {}))


def _split_efsmi_cells(line: str) -> list[str]:
    """Return the cells of a row; none for a rule."""
    inside = line.strip().strip("|*+").strip()
    return [cell.strip() for cell in inside.split("|")] if inside.strip("-=+|* ") else []


def _is_header(cells: list[str]) -> bool:
    return cells[0].startswith(("DEV ", "TEMP"))


def _find_columns(rows: list[list[str]], text: str) -> Columns:
    headers = [cells for cells in rows if _is_header(cells)]
    places = [
        next((place for cells in headers for place, cell in enumerate(cells) if word in cell), None)
        for word in ("NAME", "FW VER", "BUS-ID", "Mem")
    ]
    name, firmware, bus, memory = places
    if name is None or firmware is None or bus is None or memory is None:
        line = next((line for line in text.splitlines() if line.strip()), "")
        raise parse_error(line, "a table with DEV, NAME, FW VER, BUS-ID and Mem")
    return Columns(name, firmware, bus, memory)


def _read_efsmi_cell(row: tuple[list[str], str], place: int) -> str:
    cells, line = row
    if place >= len(cells):
        raise parse_error(line, f"at least {place + 1} cells")
    return cells[place]


def _row_pair(first: tuple[list[str], str], second: tuple[list[str], str], columns: Columns) -> EfsmiCard:
    number = _FIRST_ROW.match(_read_efsmi_cell(first, columns.name))
    bus = parse_bus(_read_efsmi_cell(first, columns.bus))
    if number is None or not (bus or is_unknown(_read_efsmi_cell(first, columns.bus).partition(" ")[0])):
        raise parse_error(first[1], "a card's number, name and PCI address")
    cell = _read_efsmi_cell(second, columns.memory)  # the size, then whether the card is split into virtual ones
    memory = None if is_unknown(cell.rpartition(" ")[0] or cell) else parse_gcu_size(cell.split(" ")[0], second[1])
    return EfsmiCard(int(number[1]), _strip_vendor(number[2]), bus, memory)


# --- efsmi --dmon ---------------------------------------------------------------------------------------------------


def parse_columns(text: str) -> EfsmiOutput:
    """Parse the columns of dmon: a header that begins with `*Dev` or `*GCU`, units below it, a row for each card."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    header = next((words for words in lines if words[0] in ("*Dev", "*GCU")), None)
    if header is None or "Mem" not in header or "MUsed" not in header:
        raise parse_error(text, "a header with *Dev, MUsed and Mem")
    rows = [words for words in lines if words[0].isascii() and words[0].isdigit() and len(words[0]) <= 4]  # noqa: PLR2004 - a card's number
    cards = [_parse_card_row(words, len(header), header.index("Mem"), header.index("MUsed")) for words in rows]
    return EfsmiOutput(_one_of_each(cards, text), {})


def _parse_card_row(words: list[str], width: int, memory: int, share: int) -> EfsmiCard:
    if len(words) != width:
        raise parse_error(" ".join(words), f"{width} columns")
    total = parse_gcu_size(words[memory], " ".join(words))
    if total is None or is_unknown(words[share]):
        return EfsmiCard(int(words[0]), memory=total)
    return EfsmiCard(int(words[0]), memory=total, used=int(total * _parse_percent(words, share)))


def _parse_percent(words: list[str], place: int) -> float:
    try:
        share = float(words[place]) / 100
    except ValueError:
        raise parse_error(" ".join(words), "a share of memory in percent") from None
    if not 0 <= share <= 1:
        raise parse_error(" ".join(words), "a share of memory in percent")
    return share
