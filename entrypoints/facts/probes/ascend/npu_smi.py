"""Parses the output of npu-smi. Pure. Each parse_* raises ValueError that quotes the line it cannot parse.

Tables differ between chips and versions: 310 and 310P have a column Device and no HBM, 910B has neither Device nor
Phy-ID, A3 has Phy-ID and several chips a card, 950 has no column Chip, boards without PCIe print NA, and widths change.
So every cell is read by the name in its header. Unknown names are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from entrypoints.core.parse import parse_id_list
from entrypoints.facts.probes.common.printed import is_unknown
from entrypoints.facts.probes.common.tools import parse_error

_SLASH = re.compile(r"(?<!\s)\s*/\s*")
_WORD = re.compile(r"\S+")
_VALUE = re.compile(r"[^\s/]+(?:\s*/\s*[^\s/]+)?")
"""A word, or a pair with its slash: 5249  / 131072."""
_PAIR = re.compile(r"(\d{1,9}|NA|N/A|-)/(\d{1,9})")
"""Used and total. A tool that may not read what is used can still know the total."""
_USAGE = re.compile(r"(HBM|Memory)-Usage\((\w+)\)")
_BUS = re.compile(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_RULE = re.compile(r"[|+]?[-=+|]*")
_VERSION = re.compile(r"npu-smi\s+\S+\s+Version:\s*(\S+)")
_IDLE = re.compile(r"No running process\w* found in NPU\s*(\d{1,5})")
_LABEL = re.compile(r"(NPU|Phy-ID)(\d{1,5})")
_COLUMNS = re.compile(r"NPU ID|Slot ID|Device ID|Chip ID|Chip Logic ID|Chip Phy-ID|Chip Count|Chip Name")

_UNITS = {"MB": 1 << 20, "GB": 1 << 30}

_CARD_HEADER = ("NPU", "Name", "Health")
_CHIP_HEADER = ("Bus-Id",)
_PROCESS_HEADER = "Process id"


class NpuSmiChip(NamedTuple):
    """One chip of `npu-smi info`."""

    npu: int
    """Number of the card on the host."""
    chip: int
    """Number of the chip on the card."""
    name: str
    health: str
    physical: int | None
    """From the column Phy-ID, if the table has it."""
    logical: int | None
    """From the column Device, if the table has it."""
    bus: str
    """PCI address; empty for boards without one."""
    memory_used: int | None
    memory_total: int | None
    """Bytes of the HBM, or of the chip's other memory if it has no HBM."""


class NpuSmiTable(NamedTuple):
    """`npu-smi info`."""

    version: str
    """Version of the tool, which is also the driver's; empty if it is not printed."""
    chips: tuple[NpuSmiChip, ...]
    running: frozenset[tuple[int, int | None]]
    """Card and chip that processes use. The chip is None in tables that name only cards."""
    listed: frozenset[int]
    """Cards whose processes the table lists."""


class NpuSmiMapping(NamedTuple):
    """One row of `npu-smi info -m`."""

    npu: int
    chip: int
    logical: int
    physical: int | None
    name: str


class NpuSmiTopology(NamedTuple):
    """`npu-smi info -t topo`."""

    numbering: str
    """Kind of the labels: NPU or Phy-ID."""
    links: Mapping[tuple[int, int], str]
    """Kind of each pair, the lower number first."""
    cpus: Mapping[int, tuple[int, ...]]
    """CPUs near each device; empty if the table has no affinity column."""


# --- npu-smi info ---------------------------------------------------------------------------------------------------


def parse_info(text: str) -> NpuSmiTable:
    """Parse `npu-smi info`: the chips, and which of them are in use."""
    version = _VERSION.search(text)
    chips, processes = _split_tables(_list_table_rows(text))
    parsed_chips = tuple(_parse_chips(chips))
    if not parsed_chips:
        raise parse_error(text.split("\n", 1)[0], "the table of `npu-smi info` with at least one card")
    places = [(chip.npu, chip.chip) for chip in parsed_chips]
    if len(set(places)) < len(places):
        raise parse_error(text.split("\n", 1)[0], "each chip once")
    running, listed = _parse_processes(processes)
    return NpuSmiTable(version[1] if version else "", parsed_chips, running, listed)


def _list_table_rows(text: str) -> list[str]:
    """Return the rows of the tables without rules and blanks; a rule between rows becomes an empty one."""
    stripped = (line.strip() for line in text.splitlines())
    return ["" if _RULE.fullmatch(line) else line for line in stripped if line.startswith(("|", "+"))]


def _split_tables(lines: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split the lines into the table of chips and the table of processes."""
    tables: tuple[list[str], list[str]] = ([], [])
    current = 0
    for line in lines:
        current = 1 if _PROCESS_HEADER in line else current
        tables[current].append(line)
    return tables


def _parse_chips(lines: list[str]) -> Iterator[NpuSmiChip]:
    """Yield a chip for each pair of rows: one of the card, one of the chip."""
    card_header = chip_header = ""
    card = ""
    for line in filter(None, lines):
        words = set(line.replace("|", " ").split())
        if words.issuperset(_CARD_HEADER):
            card_header, card = line, ""
        elif words.issuperset(_CHIP_HEADER):
            chip_header = line
        elif not card_header or not chip_header:
            continue
        elif not card:
            card = line
        else:
            yield _make_chip(
                _parse_npu_columns(card_header, card), _parse_npu_columns(chip_header, line), f"{card} {line}"
            )
            card = ""
    if card:
        raise parse_error(card, "a second row with the chip")


def _make_chip(card: Mapping[str, str], chip: Mapping[str, str], line: str) -> NpuSmiChip:
    npu = _parse_small_number(card.get("NPU", ""))
    if npu is None or not card.get("Name") or not card.get("Health"):
        raise parse_error(line, "a card's number, name and health")
    bus = chip.get("Bus-Id", "")
    used_bytes, total = _parse_chip_memory(chip)
    return NpuSmiChip(
        npu=npu,
        chip=_parse_small_number(chip.get("Chip", "")) or 0,
        name=_read_cell_word(card, "Name"),
        health=_read_cell_word(card, "Health"),
        physical=_parse_small_number(chip.get("Phy-ID", "")),
        logical=_parse_small_number(chip.get("Device", "")),
        bus=bus if _BUS.fullmatch(bus) else "",
        memory_used=used_bytes,
        memory_total=total,
    )


def _read_cell_word(cells: Mapping[str, str], column: str) -> str:
    """Return the text of a cell; empty if the tool may not read the value."""
    word = cells.get(column, "")
    return "" if is_unknown(word) and word.upper() != "UNKNOWN" else word  # UNKNOWN is a state of health


def _parse_chip_memory(chip: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return used and total bytes: of the HBM where there is any, else of the chip's only memory."""
    sizes: dict[str, tuple[int | None, int]] = {}
    for name, value in chip.items():
        usage, pair = _USAGE.fullmatch(name), _PAIR.fullmatch(value)
        if usage and pair and usage[2].upper() in _UNITS and int(pair[2]):
            unit = _UNITS[usage[2].upper()]
            sizes[usage[1]] = int(pair[1]) * unit if pair[1].isdigit() else None, int(pair[2]) * unit
    return sizes.get("HBM") or sizes.get("Memory") or (None, None)


def _parse_npu_columns(header: str, row: str) -> dict[str, str]:
    """Return the value of each column by its name. Raises ValueError if the row has not as many cells as the header."""
    names, values = header.strip("|").split("|"), _SLASH.sub("/", row).strip("|").split("|")
    if len(names) != len(values):
        raise parse_error(row, f"{len(names)} cells, as in the header")
    cells: dict[str, str] = {}
    for name, value, raw in zip(names, values, row.strip("|").split("|"), strict=True):
        cells.update(_assign_cell_words(name, value, raw))
    return cells


def _assign_cell_words(header: str, value: str, raw: str) -> dict[str, str]:
    """Assign the words of a cell to its columns: one word each, or several to Name. Missing words go by position."""
    names, words = header.split(), value.split()
    extra = len(words) - len(names)
    if extra > 0 and "Name" in names:
        place = names.index("Name")
        words[place : place + extra + 1] = [" ".join(words[place : place + extra + 1])]
    if len(words) >= len(names):
        return dict(zip(names, words, strict=False))
    starts = [match.start() for match in _WORD.finditer(header)]
    return {
        names[max((place for place, start in enumerate(starts) if start <= match.start()), default=0)]: _SLASH.sub(
            "/", match.group()
        )
        for match in _VALUE.finditer(raw)
    }


def _parse_processes(lines: list[str]) -> tuple[frozenset[tuple[int, int | None]], frozenset[int]]:
    """Return the chips in use, and the cards that the table lists. Rows without a process are ignored."""
    running: set[tuple[int, int | None]] = set()
    listed: set[int] = set()
    for line in lines[1:]:
        idle = _IDLE.search(line)
        places = [_parse_small_number(word) for word in line.strip("|").split("|")[0].split()[:2]]
        if idle:
            listed.add(int(idle[1]))
        elif places and places[0] is not None:
            listed.add(places[0])
            running.add((places[0], places[1] if len(places) > 1 else None))
    return frozenset(running), frozenset(listed)


def _parse_small_number(text: str) -> int | None:
    """Return the number of a card, chip or device; None for blanks, dashes and NA."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None  # noqa: PLR2004 - 65535 at most


# --- npu-smi info -m ------------------------------------------------------------------------------------------------


def parse_mapping(text: str) -> tuple[NpuSmiMapping, ...]:
    """Parse `npu-smi info -m`: the number that the runtime gives each chip. Management processors have none.

    On an Atlas 950 the column is missing; the number is that of the card.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    start = next((number for number, line in enumerate(lines) if line.startswith("NPU ID")), None)
    if start is None:
        raise parse_error(lines[0] if lines else "", "a header with NPU ID")
    names = _COLUMNS.findall(lines[start])
    places = tuple(filter(None, (_parse_mapping_row(names, line) for line in lines[start + 1 :])))
    if not places:
        raise parse_error(lines[start], "at least one chip")
    return places


def _parse_mapping_row(names: list[str], line: str) -> NpuSmiMapping | None:
    words = line.split(maxsplit=len(names) - 1)
    if len(words) < len(names):
        raise parse_error(line, f"{len(names)} columns, as in the header")
    row = dict(zip(names, words, strict=True))
    npu, chip = _parse_small_number(row["NPU ID"]), _parse_small_number(row.get("Chip ID", "0"))
    if npu is None or chip is None:
        raise parse_error(line, "the numbers of a card and a chip")
    logical = _parse_small_number(row.get("Chip Logic ID", row["NPU ID"]))
    if logical is None:
        return None
    return NpuSmiMapping(
        npu, chip, logical, _parse_small_number(row.get("Chip Phy-ID", "")), row.get("Chip Name", "").strip()
    )


# --- npu-smi info -t topo, -t board ---------------------------------------------------------------------------------


def parse_npu_topology(text: str) -> NpuSmiTopology:
    """Parse `npu-smi info -t topo`: the links between devices, and the CPUs near them if it has an affinity column."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    header = next((words for words in lines if _LABEL.fullmatch(words[0]) and not _is_row(words)), None)
    if header is None:
        raise parse_error(text.strip().split("\n", 1)[0], "a header with NPU0 or Phy-ID0")
    labels = [_LABEL.fullmatch(word) for word in header if word not in ("CPU", "NUMA", "Affinity")]
    numbers = [int(label[2]) if label else None for label in labels]
    links: dict[tuple[int, int], str] = {}
    cpus: dict[int, tuple[int, ...]] = {}
    for words in lines:
        label = _LABEL.fullmatch(words[0])
        if label and _is_row(words):
            number = int(label[2])
            links.update(_parse_topology_row(number, numbers, words))
            cpus[number] = _parse_affinity(words[len(numbers) + 1 :])
    numbering = _LABEL.fullmatch(header[0])
    return NpuSmiTopology(
        numbering[1] if numbering else "", links, {number: near for number, near in cpus.items() if near}
    )


def _is_row(words: list[str]) -> bool:
    """Tell a row from the header: the second word of a row is a kind of link, that of the header is a label."""
    return len(words) > 1 and not _LABEL.fullmatch(words[1]) and words[1] not in ("CPU", "NUMA")


def _parse_topology_row(number: int, numbers: list[int | None], words: list[str]) -> dict[tuple[int, int], str]:
    if len(words) <= len(numbers):
        raise parse_error(" ".join(words), f"{len(numbers)} columns, as in the header")
    kinds = zip(numbers, words[1:], strict=False)
    return {
        (number, other_number): kind
        for other_number, kind in kinds
        if other_number is not None and other_number > number and kind not in ("X", "NA")
    }


def _parse_affinity(words: list[str]) -> tuple[int, ...]:
    """Return the CPUs in the last columns; none if the columns are missing or NA."""
    try:
        return parse_id_list("".join(words))
    except ValueError:
        return ()


def parse_fields(text: str) -> dict[str, str]:
    """Parse `Key : value` lines of `npu-smi info -t board`."""
    pairs = (line.partition(":") for line in text.splitlines())
    fields = {key.strip().lower(): value.strip() for key, colon, value in pairs if colon and key.strip()}
    if not fields:
        raise parse_error(text.strip().split("\n", 1)[0], "lines `key : value`")
    return fields


def parse_keys(text: str) -> dict[str, str]:
    """Parse the driver's and CANN's `key=value` files, keys in lower case."""
    pairs = (line.partition("=") for line in text.splitlines())
    fields = {key.strip().lower(): value.strip() for key, equals, value in pairs if equals and key.strip()}
    if not fields:
        raise parse_error(text.strip().split("\n", 1)[0], "lines key=value")
    return fields
