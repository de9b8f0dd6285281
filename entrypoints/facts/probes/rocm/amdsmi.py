"""Parses the output of amd-smi, rocm-smi and rocminfo of ROCm 5 to 7. Pure. Each parse_* raises ValueError.

They are used if /sys is not enough. GPUs are read from JSON, which every version of both tools prints: amd-smi a list
of GPUs, or an object that contains it; rocm-smi an object with a key for each card. Values are found by name. The
tables that both print without arguments are read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from entrypoints.facts.probes.common.printed import (
    bus_of,
    is_unknown,
    json_in,
    load_printed_json,
    number_of,
    size_of,
    word_of,
)
from entrypoints.facts.probes.common.tools import parse_error


class AmdSmiCard(NamedTuple):
    """One GPU as a tool prints it."""

    number: int
    bus: str = ""
    name: str = ""
    memory: int | None = None
    used: int | None = None
    architecture: str = ""
    driver: str = ""
    partitions: tuple[str, str] = ("", "")
    """Memory and compute partition modes: NPS1, SPX."""
    device: str = ""
    """PCI device id: 0x7550."""
    revision: str = ""
    """PCI revision: 0xc0."""
    share: int | None = None
    """Percent of the memory in use, where the tool prints nothing else about it."""


Wires = tuple[tuple[str, str, str], ...]
"""Links: two ends, each a PCI address or the tool's number, and the kind of link."""

_EXPECTED = "amd-smi's GPUs, as JSON (--json)"
_GFX = re.compile(r"gfx[0-9a-f]{3,5}")
_HEX = re.compile(r"0x[0-9a-f]{1,4}")
_SHOWN_GPU = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+(\S[^|]*)", re.IGNORECASE)
_SHOWN_USE = re.compile(r"(\d{1,9}|N/A)/(\d{1,9}|N/A) MB")
_SHOWN_DRIVER = re.compile(r"amdgpu version: (\d[\w.]*)")
_LABELLED = re.compile(r"GPU\[(\d{1,3})\]\s*:\s*([^:\s][^:]{0,59}?)\s{0,60}:\s*(\S.*)")
_MODES = re.compile(r"(NPS\d|N/A), ([A-Z]{3}|N/A)\b")
_PERCENT = re.compile(r"(\d{1,3})%")
_PAIR = re.compile(r"between DRM devices (\d{1,4}) and (\d{1,4})")


# --- amd-smi --------------------------------------------------------------------------------------------------------


def parse_amd_smi(text: str) -> tuple[AmdSmiCard, ...]:
    """Parse `amd-smi static` or `amd-smi list`, as JSON, or the table that `amd-smi` prints without arguments."""
    table = parse_amd_smi_table(text)
    if table:
        return table
    entries = _parse_gpu_entries(text)
    if not entries:
        raise parse_error(text.strip() or "nothing", _EXPECTED)
    return tuple(_make_amd_card(entry, number) for number, entry in enumerate(entries))


def parse_amd_smi_table(text: str) -> tuple[AmdSmiCard, ...]:
    """Parse two rows for each GPU: PCI address and name, then its numbers, partition modes and memory; else nothing."""
    cards: list[AmdSmiCard] = []
    driver = _SHOWN_DRIVER.search(text)
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        gpu, use = _SHOWN_GPU.search(line), _SHOWN_USE.search(line)
        if gpu:
            name = word_of(gpu[2])
            device = _parse_pci_id(name)
            card = AmdSmiCard(len(cards), bus_of(gpu[1]), "" if device else name, device=device)
            cards.append(card._replace(driver=driver[1] if driver else ""))
        elif cards and len(words := line.strip("| ").split()) > 3:  # noqa: PLR2004 - GPU, HIP-ID, OAM-ID, Partition-Mode
            cards[-1] = _with_second_row(cards[-1], words, use)
    return tuple(sorted(cards))


def _with_second_row(card: AmdSmiCard, words: list[str], use: re.Match[str] | None) -> AmdSmiCard:
    """Return the card with HIP's number, which can differ from the tool's, its partition modes and its memory."""
    number = next((int(word) for word in (words[1], words[0]) if number_of(word) is not None), card.number)
    compute, _, memory = words[3].replace("N/A", "").partition("/")
    sizes = [size_of(side, "MB") for side in use.groups()] if use else [None, None]
    return card._replace(number=number, used=sizes[0], memory=sizes[1], partitions=(memory, compute))


def _parse_gpu_entries(text: str) -> list[Mapping[str, Any]]:
    """Return the values of each GPU by their path in lower case: asic.market_name."""
    value = load_printed_json(text, _EXPECTED)
    for _ in range(2):  # {"gpu_data": […]}, which the host and guest editions wrap in another object
        if isinstance(value, dict):
            value = next((item for item in value.values() if isinstance(item, list)), value)
    items = value if isinstance(value, list) else [value]
    return [_flatten_entry(item) for item in items if isinstance(item, dict) and item]


def _flatten_entry(item: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    flat_values: dict[str, Any] = {}
    for key, value in item.items():
        name = f"{prefix}{key}".lower()
        if isinstance(value, dict) and "value" not in value and depth < 4:  # noqa: PLR2004 - deeper than amd-smi goes
            flat_values |= _flatten_entry(value, f"{name}.", depth + 1)
        else:
            flat_values[name] = value
    return flat_values


def _make_amd_card(entry: Mapping[str, Any], number: int) -> AmdSmiCard:
    index = number_of(_read_first_value(entry, "gpu", "gpu_id"))
    return AmdSmiCard(
        number=number if index is None else index,
        bus=bus_of(_read_first_value(entry, "bus.bdf", "bdf", "asic.bdf", "asic.pci_bdf")),
        name=word_of(_read_first_value(entry, "asic.market_name", "board.product_name", "market_name")),
        memory=size_of(_read_first_value(entry, "vram.size", "vram.vram_size", "vram.size_mb"), "MB"),
        architecture=_parse_gfx_target(_read_first_value(entry, "asic.target_graphics_version")),
        driver=word_of(_read_first_value(entry, "driver.version", "driver.driver_version")),
        partitions=(
            word_of(_read_first_value(entry, "partition.memory_partition")),
            word_of(_read_first_value(entry, "partition.accelerator_partition", "partition.compute_partition")),
        ),
        device=_parse_pci_id(_read_first_value(entry, "asic.device_id")),
        revision=_parse_pci_id(_read_first_value(entry, "asic.rev_id")),
    )


def _read_first_value(entry: Mapping[str, Any], *names: str) -> Any:
    return next((entry[name] for name in names if entry.get(name) is not None and not is_unknown(str(entry[name]))), "")


def _parse_pci_id(value: Any) -> str:
    """Return a PCI id as the kernel writes it; empty for anything else."""
    text = str(value).strip().lower()
    return text if _HEX.fullmatch(text) else ""


def _parse_gfx_target(value: Any) -> str:
    match = _GFX.search(str(value))
    return match[0] if match else ""


# --- rocm-smi -------------------------------------------------------------------------------------------------------


def parse_rocm_smi(text: str) -> tuple[AmdSmiCard, ...]:
    """Parse `rocm-smi`, as JSON, as lines `GPU[0] : name: value`, or as its table."""
    value = json_in(text)
    fields = _rocm_json(value) if isinstance(value, dict) else _rocm_lines(text)
    if not fields and (cards := _rocm_table(text)):
        return cards
    if not fields:
        raise parse_error(text.strip() or "nothing", "rocm-smi's GPUs, as JSON (--json)")
    return tuple(_rocm_card(index, fields[index]) for index in sorted(fields))


def _rocm_json(value: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    system = value.get("system")
    driver = str(system.get("Driver version", "")) if isinstance(system, dict) else ""
    cards = {number_of(key[4:]): item for key, item in value.items() if key.startswith("card")}
    return {
        index: {"driver version": driver, **{str(key).lower(): field for key, field in item.items()}}
        for index, item in cards.items()
        if index is not None and isinstance(item, dict)
    }


def _rocm_lines(text: str) -> dict[int, dict[str, Any]]:
    fields: dict[int, dict[str, Any]] = {}
    for match in map(_LABELLED.match, text.splitlines()):
        if match:
            fields.setdefault(int(match[1]), {}).setdefault(match[2].strip().lower(), match[3].strip())
    return fields


def _rocm_table(text: str) -> tuple[AmdSmiCard, ...]:
    """Parse a row for each GPU, which begins with its number, and in ROCm 6.0 a row with its name below.

    The table has no size of the memory, only the share in use, in the column before the last.
    """
    cards: list[AmdSmiCard] = []
    lines = iter(text.splitlines())
    if not any("VRAM%" in line for line in lines):
        return ()
    for line in lines:
        words = line.split()
        if words and number_of(words[0]) is not None:
            device = next((word.strip("[],") for word in words if _parse_pci_id(word.strip("[],"))), "")
            shares = _PERCENT.findall(line)
            share = int(shares[-2]) if len(shares) > 1 else None
            modes = _MODES.search(line)
            partitions = (modes[1], modes[2]) if modes else ("", "")
            cards.append(AmdSmiCard(int(words[0]), device=device, share=share, partitions=partitions))
        elif words and cards and words[0] == "AMD" and not cards[-1].name:
            cards[-1] = cards[-1]._replace(name=word_of(line.strip()))
    return tuple(cards)


def _rocm_card(index: int, fields: Mapping[str, Any]) -> AmdSmiCard:
    return AmdSmiCard(
        number=index,
        bus=bus_of(fields.get("pci bus", "")),
        name=word_of(_read_first_value(fields, "card series", "device name", "card model")),
        memory=size_of(fields.get("vram total memory (b)", "")),
        used=size_of(fields.get("vram total used memory (b)", "")),
        architecture=_parse_gfx_target(fields.get("gfx version", "")),
        driver=word_of(fields.get("driver version", "")),
        device=_parse_pci_id(_read_first_value(fields, "device id", "card model")),
        revision=_parse_pci_id(fields.get("device rev", "")),
        partitions=(word_of(fields.get("memory partition", "")), word_of(fields.get("compute partition", ""))),
    )


# --- rocminfo -------------------------------------------------------------------------------------------------------


def parse_rocminfo(text: str) -> tuple[AmdSmiCard, ...]:
    """Parse the GPU agents of rocminfo, in HIP's order. It is the only tool that works without /dev/kfd (WSL)."""
    agents = re.split(r"^Agent\s+\d+", text, flags=re.MULTILINE)[1:]
    if not agents:
        raise parse_error(text.strip() or "nothing", "rocminfo's agents")
    agent_fields = (_parse_agent_fields(agent) for agent in agents)
    gpus = [fields for fields in agent_fields if fields.get("device type") == "GPU"]
    return tuple(_make_agent_card(number, fields) for number, fields in enumerate(gpus))


def _parse_agent_fields(agent: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in agent.splitlines():
        key, colon, value = line.strip().partition(":")
        if colon:
            fields.setdefault(key.strip().lower(), value.strip())
    return fields


def _make_agent_card(number: int, fields: Mapping[str, str]) -> AmdSmiCard:
    size, place = fields.get("size", "").partition("(")[0], number_of(fields.get("bdfid", ""))
    bus = "" if place is None else f"{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
    return AmdSmiCard(
        number=number,
        bus=bus_of(f"{number_of(fields.get('domain', '0')) or 0:04x}:{bus}"[-12:]) if bus else "",
        name=word_of(fields.get("marketing name", "")),
        memory=size_of(size, "KB"),
        architecture=_parse_gfx_target(fields.get("name", "")),
    )


# --- links ----------------------------------------------------------------------------------------------------------


def parse_amd_topology(text: str) -> Wires:
    """Parse the kinds of links of `amd-smi topology`, as JSON or as tables, or of `rocm-smi --showtopo`, as JSON."""
    value = json_in(text)
    wires = _topology_table(text) if value is None else _topology_json(value)
    if wires is None:
        raise parse_error(text.strip() or "nothing", "a table or a list of link types between GPUs")
    return tuple((first, second, kind) for first, second, kind in wires if first != second and kind.isalnum())


def _topology_json(value: Any) -> list[tuple[str, str, str]] | None:
    if isinstance(value, dict) and isinstance(value.get("system"), dict):
        pairs = ((_PAIR.search(str(key)), kind) for key, kind in value["system"].items() if "Link type" in str(key))
        return [(pair[1], pair[2], word_of(kind)) for pair, kind in pairs if pair]
    if isinstance(value, dict):
        value = next((item for item in value.values() if isinstance(item, list)), None)
    if not isinstance(value, list):
        return None
    return [wire for item in value if isinstance(item, dict) for wire in _list_link_ends(item)]


def _list_link_ends(item: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    first_end, kinds, links = _read_link_end(item), item.get("link_type"), item.get("links")
    if isinstance(kinds, dict):  # before ROCm 6.1.1: {"gpu_0": "SELF", "gpu_1": "XGMI"}
        yield from ((str(item.get("gpu")), str(key).rpartition("_")[2], word_of(kind)) for key, kind in kinds.items())
    for link in links if isinstance(links, list) else ():
        if isinstance(link, dict) and word_of(link.get("link_type")) not in ("", "SELF"):
            yield first_end, _read_link_end(link), word_of(link.get("link_type"))


def _read_link_end(item: Mapping[str, Any]) -> str:
    return bus_of(item.get("bdf")) or str(item.get("gpu"))


def _topology_table(text: str) -> list[tuple[str, str, str]] | None:
    """Return the cells of the table of link types: a line of column names, then rows that begin with such a name."""
    lines = iter(text.splitlines())
    if not any("LINK TYPE" in line.upper() for line in lines):
        return None
    heads = next((line.split() for line in lines if line.strip()), [])
    wires: list[tuple[str, str, str]] = []
    for line in lines:
        words = line.split()
        if len(words) != len(heads) + 1 or words[0] not in heads:
            break
        wires += [(bus_of(words[0]), bus_of(head), kind) for head, kind in zip(heads, words[1:], strict=True)]
    return wires
