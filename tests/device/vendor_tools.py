"""What the vendor's own tool says of the devices, read apart from drydock's probes. Standard library only.

Sources: `nvidia-smi -h` (driver 580), ROCm 6.4's rocm_smi.py and amd-smi's `static`, the Intel Gaudi documentation
(hl-smi -Q), Ascend's npu-smi reference, XPU Manager's smi_user_guide. Each tool is run with a time limit, and its
answer has a limit of size. The tools of other accelerators are asked for serial numbers only.
"""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.host.commands import TIMED_OUT, run_live

_MIB = 1 << 20
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Card(NamedTuple):
    """One device as the vendor's tool prints it; what it does not print is empty or None."""

    name: str = ""
    memory: int | None = None
    """MiB."""
    used: int | None = None
    """MiB."""
    bus: str = ""
    uuid: str = ""
    driver: str = ""


class VendorAnswer(NamedTuple):
    """The answer of the first tool that lists cards."""

    command: str
    """What was run; empty if drydock's script knows no tool of this accelerator."""
    cards: tuple[Card, ...] = ()
    problem: str = ""
    """Why there are no cards; empty if there are."""
    texts: tuple[str, ...] = ()
    """All that the tools printed, to find serial numbers in it."""


Parser = Callable[[str], tuple[Card, ...]]


def ask_vendor(accelerator: str, seconds: float, env: Mapping[str, str]) -> VendorAnswer:
    """Run the vendor's tools: the first that lists cards, and those that print serial numbers."""
    texts, problems = [], []
    answer = VendorAnswer("")
    for argv, parse in _TOOLS.get(accelerator, ()):
        result = run_live(argv, seconds, env)
        texts += [result.stdout, result.stderr]
        cards, problem = _read_cards(parse, result.stdout)
        if result.rc and not cards:
            problem = " ".join((result.stderr or result.stdout).split())[-200:] or f"exit code {result.rc}"
        answer = VendorAnswer(" ".join(argv), cards)
        if cards:
            break
        problems.append(f"{answer.command}: {problem.removeprefix(f'{argv[0]}: ')}")
    if answer.cards or not problems:  # a tool that did not answer is not asked again
        texts += _read_serials(accelerator, seconds, env)
    return answer._replace(problem="" if answer.cards else "; ".join(problems), texts=tuple(texts))


def _read_serials(accelerator: str, seconds: float, env: Mapping[str, str]) -> Iterator[str]:
    """Yield what the tools print with serial numbers, up to one that hangs."""
    for argv in _SERIALS.get(accelerator, ()):
        result = run_live(argv, seconds, env)
        yield result.stdout
        if result.rc == TIMED_OUT:
            return


def _read_cards(parse: Parser, text: str) -> tuple[tuple[Card, ...], str]:
    try:
        cards = parse(text)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ET.ParseError) as error:
        return (), f"{type(error).__name__}: {error}"
    return cards, "" if cards else "lists no card"


def to_mib(text: object, unit: int = _MIB) -> int | None:
    """Return a size in MiB: the first number of a text, in units of so many bytes. None if it has none."""
    number = _NUMBER.search(str(text))
    return round(float(number[0]) * unit / _MIB) if number else None


def shorten_bus(text: str) -> str:
    """Return a PCI address as the kernel writes it, with a domain of four digits."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


# --- the tools' formats ---------------------------------------------------------------------------------------------


def parse_nvidia_xml(text: str) -> tuple[Card, ...]:
    """Parse `nvidia-smi -q -x`. Raises ValueError for a document that defines entities, which could grow."""
    if "<!ENTITY" in text:
        raise ValueError("defines entities")
    log = ET.fromstring(text)  # noqa: S314 - without entities, and of limited size
    driver = _find_text(log, "driver_version")
    return tuple(
        Card(
            _find_text(gpu, "product_name"),
            to_mib(_find_text(gpu, "fb_memory_usage/total")),
            to_mib(_find_text(gpu, "fb_memory_usage/used")),
            shorten_bus(gpu.get("id", "")),
            _find_text(gpu, "uuid"),
            driver,
        )
        for gpu in log.findall("gpu")
    )


def _find_text(element: ET.Element, path: str) -> str:
    text = (element.findtext(path) or "").strip()
    return "" if text == "N/A" else text


def parse_rocm_json(text: str) -> tuple[Card, ...]:
    """Parse `rocm-smi --json`: an object for each card, and one of the system."""
    value = json.loads(text)
    driver = value.get("system", {}).get("Driver version", "")
    return tuple(
        Card(
            card.get("Card Series") or card.get("Card series") or "",
            to_mib(card.get("VRAM Total Memory (B)"), 1),
            to_mib(card.get("VRAM Total Used Memory (B)"), 1),
            shorten_bus(card["PCI Bus"]) if "PCI Bus" in card else "",
            driver=driver,
        )
        for name, card in value.items()
        if name.startswith("card")
    )


def parse_amd_json(text: str) -> tuple[Card, ...]:
    """Parse `amd-smi static --json`: a list, below `gpu_data` since ROCm 7."""
    value = json.loads(text)
    entries = value["gpu_data"] if isinstance(value, dict) else value
    return tuple(
        Card(
            entry["asic"]["market_name"],
            to_mib(json.dumps(entry.get("vram", {}).get("size", ""))),
            bus=shorten_bus(entry["bus"]["bdf"]),
            driver=str(entry.get("driver", {}).get("version", "")),
        )
        for entry in entries
    )


def parse_gaudi_csv(text: str) -> tuple[Card, ...]:
    """Parse `hl-smi -Q … -f csv`, whose first line names the columns."""
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    return tuple(
        Card(
            row["name"].strip(),
            to_mib(_find_column(row, "memory.total")),
            to_mib(_find_column(row, "memory.used")),
            shorten_bus(row["bus_id"]),
            driver=row["driver_version"].strip(),
        )
        for row in rows
    )


def _find_column(row: Mapping[str, str], name: str) -> str:
    """Return a column's value; the tool may write the unit behind the column's name."""
    return next(value for key, value in row.items() if key.partition(" ")[0] == name)


_GAUDI_CARD = re.compile(
    r"^\|\s*\d+\s+(?P<name>HL-\S+).*?\|\s*(?P<bus>[0-9a-f:.]{7,}).*\n.*\|\s*(?P<used>\d+)MiB\s*/\s*(?P<memory>\d+)MiB",
    re.MULTILINE | re.IGNORECASE,
)


def parse_gaudi_table(text: str) -> tuple[Card, ...]:
    """Parse the table of `hl-smi`: two lines for a card."""
    driver = re.search(r"^\|\s*Driver Version:\s*(\S+)", text, re.MULTILINE)
    return tuple(
        Card(
            match["name"],
            int(match["memory"]),
            int(match["used"]),
            shorten_bus(match["bus"]),
            driver=driver[1] if driver else "",
        )
        for match in _GAUDI_CARD.finditer(text)
    )


_ASCEND_CARD = re.compile(
    r"^\|\s*\d+\s+(?P<name>[A-Za-z0-9]\S*)\s*\|[^|\n]*\|[^|\n]*\|\s*\n"
    r"\|[^|\n]*\|\s*(?P<bus>[0-9A-Fa-f:.]{7,})\s*\|(?P<sizes>[^|\n]*)\|",
    re.MULTILINE,
)
_SIZES = re.compile(r"(\d+)\s*/\s*(\d+)")


def parse_ascend_table(text: str) -> tuple[Card, ...]:
    """Parse the table of `npu-smi info`: two lines for a chip, whose last pair of sizes is the device's memory."""
    driver = re.search(r"Version:\s*(\S+)", text)
    cards = []
    for match in _ASCEND_CARD.finditer(text):
        used, memory = _SIZES.findall(match["sizes"])[-1]
        bus = shorten_bus(match["bus"])
        cards.append(Card(match["name"], int(memory), int(used), bus, driver=driver[1] if driver else ""))
    return tuple(cards)


def parse_xpu_csv(text: str) -> tuple[Card, ...]:
    """Parse `xpu-smi discovery --dump`, whose first line names the columns."""
    return tuple(
        Card(
            row["Device Name"],
            to_mib(row["Memory Physical Size"]),
            bus=shorten_bus(row["PCI BDF Address"]),
            driver=row["Driver Version"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def parse_xpu_json(text: str) -> tuple[Card, ...]:
    """Parse `xpu-smi discovery -j`, which has no memory."""
    return tuple(
        Card(card["device_name"], bus=shorten_bus(card["pci_bdf_address"])) for card in json.loads(text)["device_list"]
    )


_FIELD = re.compile(r"^\|[\s\d]*\|\s*([A-Za-z ]+):\s*(\S.*?)\s*\|", re.MULTILINE)
_FIELDS_OF_XPU = ("Device Name", "PCI BDF Address")


def parse_xpu_lines(text: str) -> tuple[Card, ...]:
    """Parse the box of `xpu-smi discovery`: lines `name: value`, of which each card begins with its name."""
    cards: list[dict[str, str]] = []
    for name, value in _FIELD.findall(text):
        if name == "Device Name":
            cards.append({})
        if cards and name in _FIELDS_OF_XPU:
            cards[-1][name] = value
    return tuple(Card(card["Device Name"], bus=shorten_bus(card.get("PCI BDF Address", ""))) for card in cards)


_GAUDI_QUERY = ("hl-smi", "-Q", "name,bus_id,driver_version,memory.total,memory.used", "-f", "csv")
_ROCM_QUERY = ("rocm-smi", "--showproductname", "--showbus", "--showmeminfo", "vram", "--showdriverversion", "--json")

_TOOLS: Mapping[str, tuple[tuple[tuple[str, ...], Parser], ...]] = {
    "cuda": ((("nvidia-smi", "-q", "-x"), parse_nvidia_xml),),
    "rocm": (
        (_ROCM_QUERY, parse_rocm_json),
        (("amd-smi", "static", "--asic", "--bus", "--vram", "--driver", "--json"), parse_amd_json),
    ),
    "habana": ((_GAUDI_QUERY, parse_gaudi_csv), (("hl-smi",), parse_gaudi_table)),
    "ascend": ((("npu-smi", "info"), parse_ascend_table),),
    "xpu": (
        (("xpu-smi", "discovery", "--dump", "2,8,11,16"), parse_xpu_csv),
        (("xpu-smi", "discovery", "-j"), parse_xpu_json),
        (("xpu-smi", "discovery"), parse_xpu_lines),
    ),
}
_SERIALS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "rocm": (("rocm-smi", "--showuniqueid", "--showserial"), ("amd-smi", "static", "--asic", "--board")),
    "habana": (("hl-smi", "-q"),),
    "ascend": tuple(("npu-smi", "info", "-t", "board", "-i", str(number)) for number in range(8)),
    "xpu": tuple(("xpu-smi", "discovery", "-d", str(number)) for number in range(8)),
    "enflame": (("efsmi", "-q"),),
    "neuron": (("neuron-ls", "-j"),),
}


def pair_cards(devices: list[Mapping[str, Any]], cards: tuple[Card, ...]) -> Iterator[tuple[Mapping[str, Any], Card]]:
    """Yield each device with its card: by bus address, or in their order if the tool prints none."""
    if all(card.bus for card in cards):
        yield from zip(sorted(devices, key=_read_bus), sorted(cards, key=lambda card: card.bus), strict=False)
    else:
        yield from zip(devices, cards, strict=False)


def _read_bus(device: Mapping[str, Any]) -> str:
    return str(device["bus"])
