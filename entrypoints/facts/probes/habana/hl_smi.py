"""Parses the output of `hl-smi`. Pure. Each parse_* raises ValueError that quotes the line it cannot parse.

Formats: 1.4.1 (units written Mib), 1.14 to 1.18, 1.20 and later (a line for the NIC driver, other paddings).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.parse import parse_id_list, parse_number
from entrypoints.facts.probes.common.printed import is_unknown
from entrypoints.facts.probes.common.steps import drop_empty_values
from entrypoints.facts.probes.common.tools import parse_error

_BUS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$")
_SIZE = re.compile(r"(\d{1,9})\s*([KMG])i?B", re.IGNORECASE)
_CARD = re.compile(r"(\d{1,4})\s+([A-Z]{2,4}-\w[\w.-]*|N/A)(?=\s|$)", re.IGNORECASE)
_VERSION = re.compile(r"(HL-SMI|Nic Driver|Driver)\s+Version\s*:\s*(\S+)", re.IGNORECASE)
_DIGITS = re.compile(r"(?<!\d)\d+(?:\.\d+)+")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NAMES = {"hl-smi": "tool", "driver": "driver", "nic driver": "nic_driver"}


class HlSmiCard(NamedTuple):
    """One card as `hl-smi` lists it."""

    number: int
    name: str
    bus: str
    events: int | None
    """Uncorrectable events since the driver was loaded; None if the tool prints no number."""
    used: int | None
    total: int | None
    """Bytes; None if the tool prints N/A: while a card is reset, or without the privilege to ask the driver."""


class HlSmiTable(NamedTuple):
    """The output of `hl-smi`."""

    cards: tuple[HlSmiCard, ...]
    versions: Mapping[str, str]
    processes: frozenset[int]
    """Cards with a process. A container sees only its own processes."""


class CardAffinity(NamedTuple):
    """NUMA node and CPUs near a card."""

    node: int | None
    cpus: tuple[int, ...]


def parse_hl_smi_table(text: str) -> HlSmiTable:
    """Parse the output of `hl-smi`. Raises ValueError that quotes the line it cannot parse."""
    versions = {_NAMES[name.lower()]: digits_of(version) for name, version in _VERSION.findall(text[:2000])}
    cards, busy = [], set()
    open_card: tuple[int, str, str, int | None] | None = None
    listed = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "processes:" in line.lower():
            listed = True
        elif listed:
            busy |= _parse_process_card(cells[0].split())
        elif match := _CARD.match(cells[0]):
            if open_card:
                raise parse_error(line, f"the memory of AIP {open_card[0]}, such as 768MiB / 98304MiB")
            open_card = _first_line(match, cells, line)
        elif open_card and len(cells) > 1:
            cards.append(HlSmiCard(*open_card, *_parse_usage(cells[1], line)))
            open_card = None
    if open_card or not cards:
        raise parse_error(_find_last_text_line(text), "a table of AIPs with name, Bus-Id and Memory-Usage")
    return HlSmiTable(_require_unique_cards(cards), drop_empty_values(versions), frozenset(busy))


def _first_line(match: re.Match[str], cells: list[str], line: str) -> tuple[int, str, str, int | None]:
    """Return number, name, bus and events from the first line of a card."""
    words = [word for cell in cells[1:] for word in cell.split()]
    bus = next((word for word in words if _BUS.match(word)), "")
    if not bus and not all(map(is_unknown, cells[1].split() if len(cells) > 1 else "?")):
        raise parse_error(line, "a Bus-Id, such as 0000:19:00.0")
    last = cells[-1].split()[-1:] if len(cells) > 2 else []  # noqa: PLR2004 - name, bus, events
    events = int(last[0][:9]) if last and last[0].isascii() and last[0].isdigit() else None
    return int(match[1]), "" if is_unknown(match[2]) else match[2].upper(), full_bus(bus), events


def _parse_usage(cell: str, line: str) -> tuple[int | None, int | None]:
    """Return used and total bytes from the second line of a card."""
    used_text, slash, total = cell.replace("N/A", "NA").partition("/")
    return _parse_mib_size(used_text, line), _parse_mib_size(total, line) if slash else None


def _parse_mib_size(text: str, line: str) -> int | None:
    """Return the bytes of `768MiB`; None for N/A."""
    size = _SIZE.search(text)
    if size is None and not is_unknown(text):
        raise parse_error(line, "Memory-Usage, such as 768MiB / 98304MiB")
    return int(size[1]) * _UNITS[size[2].upper()] if size else None


def _require_unique_cards(cards: list[HlSmiCard]) -> tuple[HlSmiCard, ...]:
    """Return the cards sorted by number. Raises ValueError if two have the same number."""
    numbers = {card.number for card in cards}
    if len(numbers) != len(cards):
        raise parse_error(f"AIP numbers {sorted(card.number for card in cards)}", "each AIP once")
    return tuple(sorted(cards))


def _parse_process_card(words: list[str]) -> set[int]:
    """Return the card in a line of the process table; none if the line has no PID."""
    numbers = [word for word in words[:2] if word.isascii() and word.isdigit()]
    return {int(numbers[0][:9])} if len(numbers) == 2 else set()  # noqa: PLR2004 - AIP and PID


def _find_last_text_line(text: str) -> str:
    """Return the last line that contains a letter."""
    return next((line for line in reversed(text.splitlines()) if any(map(str.isalpha, line))), "nothing")


def parse_modules(text: str) -> dict[int, int]:
    """Parse `hl-smi -Q index,module_id -f csv` into card → module, by the header's names. Raises ValueError."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    heads = ([name.partition(" [")[0].lower() for name in row] for row in rows)
    start, names = next((entries for entries in enumerate(heads) if {"index", "module_id"} <= set(entries[1])), (0, []))
    if not names:
        raise parse_error(text.strip().splitlines()[0] if text.strip() else "nothing", "a header `index, module_id`")
    index, module = names.index("index"), names.index("module_id")
    entries: dict[int, int] = {}
    for row in rows[start + 1 :]:
        if len(row) != len(names) or not (row[index].isascii() and row[index].isdigit()):
            raise parse_error(", ".join(row), f"{len(names)} values with a number as index")
        if row[module].isascii() and row[module].isdigit():  # N/A if the firmware does not know the module
            entries[int(row[index][:9])] = int(row[module][:9])
    return entries


def parse_hl_smi_topology(text: str) -> dict[int, CardAffinity]:
    """Parse `hl-smi topo -c -N` into module → place. Raises ValueError.

    The CPUs may be several ranges with blanks between them. The NUMA node is the last word, if the column exists.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    heads = (line.lower() for line in lines)
    start, header = next((head for head in enumerate(heads) if "modid" in head[1] and "cpu" in head[1]), (0, ""))
    if not header:
        raise parse_error(lines[0] if lines else "nothing", "a header `modID  CPU Affinity  NUMA Affinity`")
    has_node = "numa" in header
    return dict(_parse_affinity_row(line, has_node=has_node) for line in lines[start + 1 :] if line.strip(" -\t|+="))


def _parse_affinity_row(line: str, *, has_node: bool) -> tuple[int, CardAffinity]:
    words = line.replace("|", " ").split()
    cpus = " ".join(words[1:-1] if has_node else words[1:])
    try:
        module = parse_number(words[0])
        near = () if is_unknown(cpus) else parse_id_list("".join(cpus.split()))
    except (ValueError, IndexError) as error:
        raise parse_error(line, "a module, its CPUs and its NUMA node") from error
    node = words[-1] if has_node else ""
    return module, CardAffinity(int(node[:9]) if node.isascii() and node.isdigit() else None, near)


def digits_of(text: str) -> str:
    """Return the digits and dots of a version: hl-gaudi2-1.20.0-fw-58.0.0-sec-9 → 1.20.0; empty if there are none."""
    match = _DIGITS.search(text[:120])
    return match[0] if match else ""


def full_bus(text: str) -> str:
    """Return a PCI address as /sys writes it: a domain of four digits, in lower case."""
    bus = text.strip().lower()
    domain, colon, rest = bus.partition(":")
    if ":" not in rest:
        return f"0000:{bus}" if colon else ""
    return f"{domain[-4:]}:{rest}"
