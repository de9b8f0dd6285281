"""Intel GPUs: reads /sys (PCI bus, i915 and xe drivers), then xpu-smi. IO.

A device is what Level Zero counts: a card, or each tile of a Max 1550. With ZE_ENABLE_PCI_ID_DEVICE_ORDER they are
numbered in the order of PCI addresses. Integrated graphics has a number too, so that numbers match ZE_AFFINITY_MASK,
but it is not among the devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os.path import basename, dirname
from typing import NamedTuple

from entrypoints.core.parse import parse_line, parse_number
from entrypoints.core.records import Device, Link, ProbeResult
from entrypoints.core.units import MIB
from entrypoints.facts.probes.common import pci
from entrypoints.facts.probes.common.pci import Pci
from entrypoints.facts.probes.common.steps import check_device_file, drop_empty_values, first_answer
from entrypoints.facts.probes.common.tools import run_tool
from entrypoints.facts.probes.xpu.xpusmi import Xpu, XpuSmiTopology, parse_discovery, parse_xpu_topology
from entrypoints.host.host import Host, Run

VENDOR = "0x8086"
_PCI = "/sys/bus/pci/devices"
_INTEGRATED = "0000:00:"
"""Bus of integrated graphics. Cards are behind a bridge."""
_DUMP = (("xpu-smi", "discovery", "--dump", "1,2,8,11,16"), parse_discovery)
"""Properties: device id, name, driver version, PCI address, memory."""
_LIST = (("xpu-smi", "discovery", "-j"), parse_discovery)
_LINES = (("xpu-smi", "discovery"), parse_discovery)
_TABLE = (("xpu-smi",), parse_discovery)
"""What version 2.0 prints, which has no `discovery`."""
DEVICE_TOOL = ("xpu-smi", "health", "-l")
_MATRIX = ("xpu-smi", "topology", "-m")
_RUNTIME = "/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1."


class Model(NamedTuple):
    """The model of a PCI device id."""

    name: str
    architecture: str
    """Target name of Intel's compilers."""
    memory: int | None = None
    """MiB that xpu-smi reports for this model; used if neither driver nor tool reports it."""
    tiles: int = 1


MODELS = {
    "0x0bd5": Model("Intel Data Center GPU Max 1550", "pvc", 131072, tiles=2),
    "0x0bda": Model("Intel Data Center GPU Max 1100", "pvc", 49152),
    "0x56a0": Model("Intel Arc A770", "acm-g10"),
    "0x56a1": Model("Intel Arc A750", "acm-g10", 8192),
    "0x56c0": Model("Intel Data Center GPU Flex 170", "acm-g10", 14248),
    "0x56c1": Model("Intel Data Center GPU Flex 140", "acm-g11"),
    "0xe20b": Model("Intel Arc B580", "bmg-g21", 12216),
    "0xe20c": Model("Intel Arc B570", "bmg-g21"),
    "0xe211": Model("Intel Arc Pro B60", "bmg-g21", 24480),
    "0xe212": Model("Intel Arc Pro B50", "bmg-g21"),
    "0xe223": Model("Intel Arc Pro B70", "bmg-g31", 32696),
}
"""PCI device id → model (linux/include/drm/intel/pciids.h, pci.ids); memory from published outputs of xpu-smi."""


class XpuCard(NamedTuple):
    """A card of this container."""

    place: int
    """Index among all cards that Level Zero finds, by PCI address."""
    pci: Pci
    path: str
    """Path of its render node."""


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the GPUs that Level Zero finds in this container, and the links between them."""
    functions = sorted(pci.find_pci_functions(host, VENDOR, kinds=("0x03",)), key=lambda function: function.bus)
    open_cards = _list_open_cards(host, functions)
    cards = tuple(card for card in open_cards if not card.pci.bus.startswith(_INTEGRATED))
    listed = _run_xpu_tools(host, run) if any(_driver_memory(host, card) is None for card in cards) else ()
    flat = env.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") != "COMPOSITE"
    devices = _list_tile_devices(host, open_cards, listed, flat=flat)
    places = _read_xpu_topology(host, run, devices)
    devices = tuple(
        _with_cpus(device, label, places) for device, label in zip(devices, _label_tiles(devices), strict=True)
    )
    _require_memory(host, devices)
    # a card bound to another driver, such as vfio-pci, has no render node: what its driver is says why
    buses = [card.pci.bus for card in cards] or [
        function.bus for function in functions if not function.bus.startswith(_INTEGRATED)
    ]
    return ProbeResult(
        devices, _list_xe_links(devices, places), _read_xpu_versions(host, buses[0], listed) if buses else {}
    )


def _list_open_cards(host: Host, functions: Iterable[Pci]) -> tuple[XpuCard, ...]:
    """Return the Intel GPUs whose render node can be opened in this container."""
    nodes = ((function, _find_render_node(host, function.bus)) for function in functions)
    opened = [(function, path) for function, path in nodes if path and check_device_file(host, path)]
    return tuple(XpuCard(place, function, path) for place, (function, path) in enumerate(opened))


def _find_render_node(host: Host, bus: str) -> str:
    """Return the device file of a GPU; empty if the container does not have it."""
    names = (basename(path) for path in host.glob(f"{_PCI}/{bus}/drm/renderD*"))
    return next((f"/dev/dri/{name}" for name in names if host.exists(f"/dev/dri/{name}")), "")


def _driver_memory(host: Host, card: XpuCard) -> int | None:
    """Return the memory of all tiles from the xe driver, or of the card from Intel's own build of i915."""
    sizes = [
        host.parsed(path, parse_number, 0)
        for pattern in ("tile*/physical_vram_size_bytes", "drm/card*/lmem_total_bytes")
        for path in host.glob(f"{_PCI}/{card.pci.bus}/{pattern}")
    ]
    return sum(sizes) or None


def _run_xpu_tools(host: Host, run: Run) -> tuple[Xpu, ...]:
    """Return the devices in xpu-smi, from one dump if the version supports it, else one by one."""
    listed = first_answer(host, run, (_DUMP, _LIST, _LINES, _TABLE)) or ()
    return tuple(card if card.memory else _add_card_details(host, run, card) for card in listed)


def _add_card_details(host: Host, run: Run, card: Xpu) -> Xpu:
    """Return the card with what the tool says of it alone; a version without this form is no failure."""
    before = len(host.failures)
    details = run_tool(host, run, ("xpu-smi", "discovery", "-d", str(card.number), "-j"), parse_discovery) or ()
    if not details:
        del host.failures[before:]  # memory that is not known then is one
    return next((detail._replace(bus=detail.bus or card.bus) for detail in details), card)


def _list_tile_devices(
    host: Host, open_cards: Iterable[XpuCard], listed: tuple[Xpu, ...], *, flat: bool
) -> tuple[Device, ...]:
    """Return every tile of every card. Integrated graphics takes a number, but is left out."""
    devices: list[Device] = []
    number = 0
    for card in open_cards:
        if card.pci.bus.startswith(_INTEGRATED):
            number += 1
            continue
        xpu = next((xpu for xpu in listed if xpu.bus == card.pci.bus), Xpu(card.place))
        tiles = _count_tiles(host, card, xpu) if flat else 1
        whole = _make_xpu_device(host, card, xpu, tiles)
        devices += [whole._replace(number=number + tile) for tile in range(tiles)]
        number += tiles
    return tuple(devices)


def _count_tiles(host: Host, card: XpuCard, xpu: Xpu) -> int:
    driver = len(host.glob(f"{_PCI}/{card.pci.bus}/tile*/physical_vram_size_bytes"))
    return driver or xpu.tiles or MODELS.get(card.pci.device, Model("", "")).tiles


def _make_xpu_device(host: Host, card: XpuCard, xpu: Xpu, tiles: int) -> Device:
    model = MODELS.get(card.pci.device, Model(f"Intel Graphics [{card.pci.device}]", ""))
    model_memory = None if model.memory is None else model.memory * MIB
    memory = _driver_memory(host, card) or xpu.memory or model_memory
    tool_name = xpu.name if "[0x" not in xpu.name else ""  # drivers that do not know a card yet print its id
    if model.name.startswith(_plain_name(tool_name)) and len(model.name) > len(_plain_name(tool_name)):
        tool_name = ""  # cut off by the width of the tool's table
    return Device(
        number=card.place,
        name=tool_name or model.name,
        memory_total=memory // tiles if memory else None,
        memory_used=None if xpu.used is None else xpu.used // tiles,
        node=card.pci.node,
        health="ok" if xpu.state == "normal" else xpu.state,
        bus=card.pci.bus,
        cpus=card.pci.cpus,
        architecture=model.architecture,
        path=card.path,
        card=card.place if tiles > 1 else None,
    )


def _plain_name(name: str) -> str:
    """Return a name without trade marks: Intel(R) Arc(TM) Pro B60 Graphics → Intel Arc Pro B60."""
    return name.replace("(R)", "").replace("(TM)", "").removesuffix(" Graphics")


# --- links ----------------------------------------------------------------------------------------------------------


def _read_xpu_topology(host: Host, run: Run, devices: tuple[Device, ...]) -> XpuSmiTopology:
    """Return what xpu-smi adds to /sys: Xe Links of the Max series, and CPUs that /sys does not list."""
    if len(devices) > 1 and any(device.architecture == "pvc" or not device.cpus for device in devices):
        return run_tool(host, run, _MATRIX, parse_xpu_topology) or XpuSmiTopology((), {})
    if len(devices) == 1 and not devices[0].cpus:
        return run_tool(host, run, ("xpu-smi", "topology", "-d", "0"), parse_xpu_topology) or XpuSmiTopology((), {})
    return XpuSmiTopology((), {})


def _label_tiles(devices: tuple[Device, ...]) -> list[str]:
    """Return the label of each device in a topology: `card/tile`, counted among the devices of the container."""
    buses = sorted({device.bus for device in devices})
    tile_counts: dict[str, int] = {}
    labels = []
    for device in devices:
        labels.append(f"{buses.index(device.bus)}/{tile_counts.get(device.bus, 0)}")
        tile_counts[device.bus] = tile_counts.get(device.bus, 0) + 1
    return labels


def _shorten_label(label: str) -> str:
    return label.partition("/")[0] if label.endswith("/0") else label


def _with_cpus(device: Device, label: str, places: XpuSmiTopology) -> Device:
    cpus = places.cpus.get(label) or places.cpus.get(_shorten_label(label)) or ()
    return device if device.cpus else device._replace(cpus=cpus)


def _list_xe_links(devices: tuple[Device, ...], places: XpuSmiTopology) -> tuple[Link, ...]:
    numbers = {label: device.number for label, device in zip(_label_tiles(devices), devices, strict=True)}
    numbers |= {_shorten_label(label): number for label, number in numbers.items() if label.endswith("/0")}
    ends = ((numbers.get(first, -1), numbers.get(second, -1), kind) for first, second, kind in places.links)
    return tuple(Link(first, second, kind) for first, second, kind in ends if 0 <= first < second)


# --- versions -------------------------------------------------------------------------------------------------------


def _read_xpu_versions(host: Host, bus: str, listed: Iterable[Xpu]) -> dict[str, str]:
    module = next((basename(dirname(path)) for path in host.glob(f"/sys/bus/pci/drivers/*/{bus}")), "none")
    libraries = (path.removeprefix(_RUNTIME) for path in host.glob(f"{_RUNTIME}*.*"))
    versions = {
        "module": module,
        "driver": host.parsed("/sys/module/i915/version", parse_line, "") if module == "i915" else "",
        "runtime": next(libraries, ""),
        "tool_driver": next((xpu.driver for xpu in listed), ""),
    }
    return drop_empty_values(versions)


def _require_memory(host: Host, devices: Iterable[Device]) -> None:
    unknown = [f"{device.name} at {device.bus}" for device in devices if not device.memory_total]
    if unknown:
        host.fail(
            f"the memory of {', '.join(dict.fromkeys(unknown))}",
            "neither the driver nor xpu-smi reports it",
            "install xpu-smi in the image, or load the xe driver, which shows it in /sys",
        )
