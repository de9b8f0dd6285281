"""Gaudi, Gaudi2, Gaudi2E, Gaudi3: reads /sys/class/accel and PCI, then `hl-smi`, the only source of the memory size.

A container has the device files of its own cards, but its /sys shows all cards of the machine. So the cards of the
container are those that `hl-smi` lists, or if it is absent, those with a device file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os.path import basename, dirname
from typing import NamedTuple

from entrypoints.core.parse import parse_line, parse_number, parse_version_numbers
from entrypoints.core.records import Device, ProbeResult
from entrypoints.core.units import MIB
from entrypoints.facts.probes.common import pci
from entrypoints.facts.probes.common.steps import drop_empty_values
from entrypoints.facts.probes.common.tools import run_tool
from entrypoints.facts.probes.habana.hl_smi import (
    CardAffinity,
    HlSmiCard,
    HlSmiTable,
    digits_of,
    full_bus,
    parse_hl_smi_table,
    parse_hl_smi_topology,
    parse_modules,
)
from entrypoints.host.host import Host, Run

VENDOR = "0x1da3"
"""Habana Labs, from the kernel's pci_ids.h."""

TABLE = ("hl-smi",)
DEVICE_TOOL = TABLE
MODULES = ("hl-smi", "-Q", "index,module_id", "-f", "csv")
TOPOLOGY = ("hl-smi", "topo", "-c", "-N")

IDLE = 2 << 30
"""Bytes. An idle card uses less (firmware takes 512 to 768 MiB), the weights of a model take more."""

PACKAGES = ("habanalabs-firmware-tools", "habanalabs-graph", "habanalabs-rdma-core", "habanalabs-thunk")
DEBS = "/var/lib/dpkg/info/habanalabs-*.list"
MODULES_OF_PYTHON = (
    "habana_media_loader",
    "habana_pyhlml",
    "habana_torch_dataloader",
    "habana_torch_plugin",
    "neural_compressor",
)
DISTRIBUTIONS = tuple(
    f"/usr/local/lib/python3*/dist-packages/{name}-*.dist-info/METADATA" for name in ("habana_*", "neural_compressor*")
)

_WORKING = "operational"
"""What the driver writes as the status of a card that works."""
_PRIVILEGE = (
    "root, or docker run --privileged …: until then the size of the model is used, and memory that other processes"
    " hold is not seen"
)

_KINDS = {
    "0x0001": "goya",
    **dict.fromkeys(("0x1000", "0x1001", "0x1010", "0x1011"), "gaudi"),
    **dict.fromkeys(("0x1020", "0x1021", "0x1030"), "gaudi2"),
    **dict.fromkeys((f"0x106{digit}" for digit in range(10)), "gaudi3"),
}
"""PCI device id → target that graphs are compiled for, from habanalabs-installer.sh; 0x1021 from Gaudi2E's manual."""
_MEMORY = {"20": 32768, "225": 98304, "288": 98304, "325": 131072, "328": 131072, "338": 131072}
"""First digits of the card's number → MiB that hl-smi prints (its published outputs; Gaudi 3's product briefs)."""
_FAMILIES = {"1": "goya", "2": "gaudi2", "3": "gaudi3"}
"""First digit of the card's number, HL-225 → gaudi2. Only HL-20x is the first Gaudi."""


class DriverCard(NamedTuple):
    """One card in /sys/class/accel."""

    number: int
    bus: str
    module: int | None
    status: str
    firmware: str


class Around(NamedTuple):
    """Data about one card from sources other than the tool's table."""

    node: DriverCard | None
    function: pci.Pci | None
    module: int | None
    place: CardAffinity


def probe(host: Host, run: Run, _env: Mapping[str, str]) -> ProbeResult:
    """Return the cards of this container. A card of unknown memory size is a failure."""
    functions = {function.bus: function for function in pci.find_pci_functions(host, VENDOR)}
    files = host.glob("/dev/accel/accel[0-9]*") or host.glob("/dev/hl[0-9]*")
    if not functions and not files:
        return ProbeResult()
    table = run_tool(host, run, TABLE, parse_hl_smi_table)
    if table is None and not functions:
        return ProbeResult()  # accelerators of other vendors have the same device files
    nodes = _read_driver_cards(host)
    versions = _read_gaudi_versions(host, nodes.values())
    if table is None:
        return ProbeResult(_without_tool(host, files, nodes, functions), (), versions)
    modules = _read_modules(host, run, table, nodes)
    places = _read_card_affinities(host, run, table, modules, functions)
    devices = tuple(
        _make_gaudi_device(
            host,
            card,
            Around(nodes.get(card.bus), functions.get(card.bus), modules.get(card.number), places[card.number]),
            processes=card.number in table.processes,
            hidden=_is_hidden(card, table, nodes.get(card.bus)),
        )
        for card in table.cards
    )
    driver_numbers = {node.number for node in nodes.values()}
    ours = [path for path in files if int(re.findall(r"\d+", path)[-1]) in driver_numbers]
    if len(table.cards) < len(ours):
        host.fail(TABLE[0], f"{len(table.cards)} cards, for {', '.join(ours)}", "a card for each file; one may be lost")
    _report_unread(host, table, nodes)
    return ProbeResult(_drop_cards_without_file(devices, nodes), (), {**versions, **table.versions})


def _report_unread(host: Host, table: HlSmiTable, nodes: Mapping[str, DriverCard]) -> None:
    """Add a failure for the cards whose memory the tool may not read, and for those that are in a reset."""
    hidden = [card for card in table.cards if card.total is None and _is_hidden(card, table, nodes.get(card.bus))]
    if hidden:
        cards = ", ".join(str(card.number) for card in hidden)
        host.fail(f"{TABLE[0]}: AIP {cards}", "memory N/A: no privilege to read it", _PRIVILEGE)
    for card in table.cards:
        if card.total is None and card not in hidden:
            host.fail(f"{TABLE[0]}: AIP {card.number}", "memory N/A", "a memory size; the card may be in a reset")


def _is_hidden(card: HlSmiCard, table: HlSmiTable, node: DriverCard | None) -> bool:
    """Tell whether the tool may not read a card that works: its driver says so, or no card can be read."""
    if node and node.status:
        return node.status.lower() == _WORKING
    return all(table_card.total is None for table_card in table.cards) and _model_memory(card.name) is not None


def _model_memory(name: str) -> int | None:
    """Return the memory of a model by its name, HL-288E; None if the model is not known."""
    digits = name.partition("-")[2]
    return next((size * MIB for start, size in _MEMORY.items() if digits.startswith(start)), None)


def _drop_cards_without_file(devices: tuple[Device, ...], nodes: Mapping[str, DriverCard]) -> tuple[Device, ...]:
    """Return the cards that have a device file, if the driver shows which file belongs to which card."""
    if not all(device.bus in nodes for device in devices) or not any(device.path for device in devices):
        return devices
    return tuple(device for device in devices if device.path)


def _make_gaudi_device(host: Host, card: HlSmiCard, around: Around, *, processes: bool, hidden: bool) -> Device:
    """Return a device. `hidden` tells that the tool may not read the memory of a card that works."""
    node = around.node
    memory = _model_memory(card.name) if card.total is None and hidden else card.total
    return Device(
        number=card.number,
        name=card.name,
        memory_total=memory,
        memory_used=card.used,
        node=around.place.node,
        module_id=around.module,
        health=_describe_card_health(card.events, node.status if node else "") if memory is not None else "memory N/A",
        busy=_is_card_busy(card, processes=processes),
        bus=card.bus,
        cpus=around.place.cpus,
        architecture=_find_gaudi_architecture(card.name, around.function),
        path=_find_card_file(host, node.number if node else card.number),
    )


def _is_card_busy(card: HlSmiCard, *, processes: bool) -> bool | None:
    """Tell whether a card is in use. Processes of other containers are visible only by the memory they take."""
    if processes:
        return True
    return None if card.used is None else card.used > IDLE


def _describe_card_health(events: int | None, status: str) -> str:
    """Return `ok`, the state that the driver reports, or the number of uncorrectable events."""
    if status and status.lower() != _WORKING:
        return status
    if events:
        return f"{events} uncorrectable events"
    return "" if events is None and not status else "ok"


def _find_gaudi_architecture(name: str, function: pci.Pci | None) -> str:
    """Return the target that graphs are compiled for."""
    digits = name.partition("-")[2]
    if digits.startswith("20"):
        return "gaudi"
    family = _FAMILIES.get(digits[:1], "")
    return family or (_KINDS.get(function.device, "") if function else "")


def _find_card_file(host: Host, number: int) -> str:
    """Return the device file of a card. Old drivers name it /dev/hl0."""
    paths = (f"/dev/accel/accel{number}", f"/dev/hl{number}")
    return next((path for path in paths if host.exists(path)), "")


# --- without the tool -----------------------------------------------------------------------------------------------


def _without_tool(
    host: Host, files: tuple[str, ...], nodes: Mapping[str, DriverCard], functions: Mapping[str, pci.Pci]
) -> tuple[Device, ...]:
    """Return the cards as known from files only, and add a failure that says what is missing."""
    if not files:
        problem = f"no device file, while /sys shows {len(functions)} of Habana's PCI functions"
        host.fail("/dev/accel", problem, "accel0 …: docker run --runtime=habana -e HABANA_VISIBLE_DEVICES=all …")
        return ()
    if not any(failure.where.startswith(TABLE[0]) for failure in host.failures):
        expected = "hl-smi, the only source of the memory size: in habanalabs-firmware-tools, or from --runtime=habana"
        host.fail(TABLE[0], "not found", expected)
    by_number = {node.number: node for node in nodes.values()}
    numbers = {int(re.findall(r"\d+", path)[-1]): path for path in files}
    return tuple(
        _make_bare_device(number, path, by_number.get(number), functions) for number, path in sorted(numbers.items())
    )


def _make_bare_device(number: int, path: str, node: DriverCard | None, functions: Mapping[str, pci.Pci]) -> Device:
    function = functions.get(node.bus) if node else None
    return Device(
        number=number,
        name="",
        memory_total=None,
        memory_used=None,
        node=function.node if function else None,
        module_id=node.module if node else None,
        health=_describe_card_health(None, node.status if node else ""),
        bus=node.bus if node else "",
        cpus=function.cpus if function else (),
        architecture=_find_gaudi_architecture("", function),
        path=path,
    )


# --- files ----------------------------------------------------------------------------------------------------------


def _read_driver_cards(host: Host) -> dict[str, DriverCard]:
    """Return PCI address → card from the driver's folders. Old drivers have /sys/class/habanalabs/hl0."""
    paths = host.glob("/sys/class/accel/accel[0-9]*/device/pci_addr") or host.glob(
        "/sys/class/habanalabs/hl[0-9]*/pci_addr"
    )
    driver_cards = (_read_driver_card(host, dirname(path), path) for path in paths)
    return {node.bus: node for node in driver_cards if node.bus}


def _read_driver_card(host: Host, folder: str, path: str) -> DriverCard:
    nothing: int | None = None
    return DriverCard(
        number=int(re.findall(r"\d+", folder)[-1]),
        bus=full_bus(host.parsed(path, parse_line, "")),
        module=host.parsed(f"{folder}/module_id", parse_number, nothing),
        status=host.parsed(f"{folder}/status", parse_line, ""),
        firmware=host.parsed(f"{folder}/preboot_btl_ver", parse_line, ""),
    )


def _read_gaudi_versions(host: Host, nodes: Iterable[DriverCard]) -> dict[str, str]:
    """Return the versions in files: that of the loaded driver, and the oldest firmware of the cards."""
    driver = digits_of(host.parsed("/sys/module/habanalabs/version", parse_line, ""))
    firmware = sorted(filter(None, (digits_of(node.firmware) for node in nodes)), key=parse_version_numbers)
    versions = {"driver": driver, "firmware": firmware[0] if firmware else ""}
    return drop_empty_values(versions) | list_gaudi_packages(host)


def list_gaudi_packages(host: Host) -> dict[str, str]:
    """Return Gaudi's packages in this image: name → version, `installed`, or `missing`; empty outside such an image.

    The names are those of vLLM's installation manual, Intel Gaudi, environment verification.
    """
    debs = {basename(path).removesuffix(".list"): "installed" for path in host.glob(DEBS)}
    files = (path for pattern in DISTRIBUTIONS for path in host.glob(pattern))
    folders = (path.split("/")[-2].removesuffix(".dist-info").partition("-") for path in files)
    packages = debs | {name.removesuffix("_pt"): version for name, _, version in folders}
    if not packages:
        return {}
    return {name.replace("-", "_"): packages.get(name, "missing") for name in (*PACKAGES, *MODULES_OF_PYTHON)}


# --- module, NUMA node and CPUs of a card ---------------------------------------------------------------------------


def _read_modules(host: Host, run: Run, table: HlSmiTable, nodes: Mapping[str, DriverCard]) -> dict[int, int]:
    """Return card → module, from the driver's files if they have all of them, else from the tool."""
    driver_modules = {card.number: nodes[card.bus].module for card in table.cards if card.bus in nodes}
    modules = {number: module for number, module in driver_modules.items() if module is not None}
    if len(modules) == len(table.cards):
        return modules
    return run_tool(host, run, MODULES, parse_modules) or modules


def _read_card_affinities(
    host: Host, run: Run, table: HlSmiTable, modules: Mapping[int, int], functions: Mapping[str, pci.Pci]
) -> dict[int, CardAffinity]:
    """Return card → NUMA node and CPUs, from /sys, else from the tool, which lists them by module."""
    places = {card.number: _make_affinity(functions.get(card.bus)) for card in table.cards}
    if all(place.node is not None and place.cpus for place in places.values()):
        return places
    by_module = run_tool(host, run, TOPOLOGY, parse_hl_smi_topology) or {}
    return {
        number: _complete_affinity(place, by_module.get(modules.get(number, -1))) for number, place in places.items()
    }


def _make_affinity(function: pci.Pci | None) -> CardAffinity:
    return CardAffinity(function.node, function.cpus) if function else CardAffinity(None, ())


def _complete_affinity(place: CardAffinity, listed: CardAffinity | None) -> CardAffinity:
    """Return a place from /sys with missing values from the tool."""
    if listed is None:
        return place
    return CardAffinity(listed.node if place.node is None else place.node, place.cpus or listed.cpus)
