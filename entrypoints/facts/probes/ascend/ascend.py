"""Huawei Ascend NPUs: reads device files and PCI, then npu-smi, the only source of memory, health and numbering.

A device is what torch_npu counts: a chip, or die. A3 and 300I Duo cards have two. The kernel numbers /dev/davinciN by
physical id. The runtime numbers the devices of the container from 0 (logic id).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os.path import dirname

from entrypoints.core.parse import is_number, parse_id_list
from entrypoints.core.records import Device, Link, ProbeResult
from entrypoints.core.units import MIB
from entrypoints.facts.probes.ascend import npu_smi
from entrypoints.facts.probes.common import pci
from entrypoints.facts.probes.common.tools import run_tool, strip_terminal_escapes
from entrypoints.host.host import Host, Result, Run

VENDOR = "0x19e5"
PROCESSING = ("0x12",)
"""PCI class of processing accelerators. Huawei's network cards have another class."""

_PCI = {
    "0xd500": "ascend310p",
    "0xd801": "ascend910",
    "0xd802": "ascend910b",
    "0xd803": "ascend910_93",
}
"""PCI device id → target that kernels are compiled for, in CANN's names. The ids are from Ascend's log collector."""

_FAMILIES = (
    ("910_93", "ascend910_93"),
    ("910B", "ascend910b"),
    ("A2G3", "ascend910b"),
    ("310P", "ascend310p"),
    ("310B", "ascend310b"),
    ("950", "ascend950"),
)
"""Part of a chip's name → the same target, for unknown PCI ids. vllm-ascend's setup.py uses the same parts."""

_MEMORY = {
    "910B4-1": 65536,
    "910B4": 32768,
    "910B": 65536,
    "910PRO": 32768,
    "310P": 21525,
    "ascend910_93": 65536,
}
"""Part of a chip's name, or its target → MB that npu-smi prints, where it may not read them; the first part counts.

vllm-ascend's published outputs; of a 310P the smallest (300I Pro).
"""

_ROOT = "/usr/local/Ascend"
_INSTALLED = "/etc/ascend_install.info"
_TOOLKITS = (
    "ascend-toolkit/latest/*/ascend_toolkit_install.info",
    "cann*/*/ascend_toolkit_install.info",
    "ascend-toolkit/latest/ascend_toolkit_install.info",
)
HCCN = "/etc/hccn.conf"
"""`address_0=…` for each chip, as hccn_tool writes it. A recorded host has only the names, not the addresses."""
_TOOL = "npu-smi"
DEVICE_TOOL = (_TOOL, "info")
_POD = "ascend910_93"
"""The chips of A3, whose super pods have numbers."""
_MOUNT = (
    "npu-smi, the only source of memory and health: docker run -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro"
    " -v /usr/local/dcmi:/usr/local/dcmi:ro -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro"
)


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the NPUs of this container."""
    del env  # decisions apply ASCEND_RT_VISIBLE_DEVICES
    paths = host.glob("/dev/davinci[0-9]*")
    if not paths:
        return ProbeResult(versions=_read_npu_versions(host, run, None))
    functions = {function.bus: function for function in pci.find_pci_functions(host, VENDOR, kinds=PROCESSING)}
    table = run_tool(host, run, (_TOOL, "info"), npu_smi.parse_info)
    if table is None:
        if not any(failure.where.startswith(_TOOL) for failure in host.failures):
            host.fail(_TOOL, "command not found", _MOUNT)
        return ProbeResult(_from_files(paths, functions), versions=_read_npu_versions(host, run, None))
    if len(table.chips) < len(paths):
        problem = f"{len(table.chips)} chips, for {', '.join(paths)}"
        host.fail(f"{_TOOL} info", problem, "a chip for each device file; a missing chip is off the bus or not ready")
    mapping = run_tool(host, run, (_TOOL, "info", "-m"), npu_smi.parse_mapping) or ()
    topology = run_tool(host, run, (_TOOL, "info", "-t", "topo"), npu_smi.parse_npu_topology)
    families = {bus: _PCI.get(function.device, "") for bus, function in functions.items()}
    devices = tuple(
        _with_memory(device._replace(architecture=families.get(device.bus) or device.architecture))
        for device in _match_chips(host, table, mapping, paths)
    )
    unknown = [device for device in devices if not device.memory_total]
    if unknown:
        problem = f"no memory size for {', '.join(f'{device.number}: {device.name}' for device in unknown)}"
        host.fail(f"{_TOOL} info", problem, "HBM-Usage or Memory-Usage of each chip; run it as root in the container")
    placed, links = _add_topology(host, devices, table, topology)
    present_devices = _drop_chips_without_file(host, placed, paths)
    numbers = (
        {device.number: order for order, device in enumerate(present_devices)} if present_devices != placed else {}
    )
    ours = [link for link in links if not numbers or {link.first, link.second} <= set(numbers)]
    return ProbeResult(
        tuple(device._replace(number=numbers.get(device.number, device.number)) for device in present_devices),
        tuple(Link(numbers.get(a, a), numbers.get(b, b), kind) for a, b, kind in ours),
        _read_npu_versions(host, run, table),
        _count_missing_addresses(host, present_devices),
    )


def also_recorded(devices: tuple[Device, ...], answers: Mapping[str, Result]) -> Iterator[tuple[str, ...]]:
    """Yield commands that only a recording needs: each chip's own address, and its place in a super pod (A3).

    Ranktables are made of them (drydock/topology/render/chips.py). No server asks: sixteen chips take seconds.
    """
    pods = any(device.architecture == _POD for device in devices)
    for device in devices:
        for kind in ("-ip", "-vnic") if pods else ("-ip",):
            yield ("hccn_tool", "-i", str(device.number), kind, "-g")
    mapping = answers.get(f"{_TOOL} info -m")
    for chip in (
        npu_smi.parse_mapping(strip_terminal_escapes(mapping.stdout)) if pods and mapping and not mapping.rc else ()
    ):
        yield (_TOOL, "info", "-t", "spod-info", "-i", str(chip.npu), "-c", str(chip.chip))


def _drop_chips_without_file(host: Host, devices: tuple[Device, ...], paths: tuple[str, ...]) -> tuple[Device, ...]:
    """Return the devices that have a device file, if the tool lists more devices than there are files."""
    if len(devices) <= len(paths):
        return devices
    devices_with_file = tuple(device for device in devices if device.path)
    if len(devices_with_file) != len(paths):
        problem = f"{len(devices)} chips, of which the ones for {', '.join(paths)} cannot be identified"
        host.fail(
            f"{_TOOL} info", problem, "as many chips as device files: docker run --device /dev/davinci<N> for each"
        )
    return devices_with_file or devices


# --- devices --------------------------------------------------------------------------------------------------------


def _from_files(paths: tuple[str, ...], functions: Mapping[str, pci.Pci]) -> tuple[Device, ...]:
    """Return the devices as known from device files and PCI: their number, and their family if all have the same."""
    families = {_PCI.get(function.device, "") for function in functions.values()}
    family = families.pop() if len(families) == 1 else ""
    return tuple(
        Device(number, family, None, None, None, module_id=_parse_davinci_number(path), architecture=family, path=path)
        for number, path in enumerate(paths)
    )


def _parse_davinci_number(path: str) -> int:
    return int(path.rpartition("davinci")[2]) if is_number(path.rpartition("davinci")[2]) else 0


def _match_chips(
    host: Host, table: npu_smi.NpuSmiTable, mapping: tuple[npu_smi.NpuSmiMapping, ...], paths: tuple[str, ...]
) -> tuple[Device, ...]:
    """Match the chips with their logic ids and device files, in the order of the runtime."""
    places = {(place.npu, place.chip): place for place in mapping}
    joined = [(_find_logic_id(chip, places, order), chip) for order, chip in enumerate(table.chips)]
    joined.sort(key=lambda pair: pair[0])
    numbers = [_parse_davinci_number(path) for path in paths]
    physical_ids = [_find_physical_id(chip, places) for _, chip in joined]
    if None in physical_ids and len(numbers) == len(joined):  # the runtime counts device files in their order
        physical_ids = [
            number if physical_id is None else physical_id
            for physical_id, number in zip(physical_ids, numbers, strict=True)
        ]
    elif len(numbers) < len(joined) and len({chip.npu for _, chip in joined}) == len(joined):
        physical_ids = [
            chip.npu if physical_id is None else physical_id
            for physical_id, (_, chip) in zip(physical_ids, joined, strict=True)
        ]
    npus = [chip.npu for chip in table.chips]
    shared = {npu for npu in npus if npus.count(npu) > 1}
    return tuple(
        _make_npu_device(host, table, chip, places, shared)._replace(
            number=logical, module_id=physical, path=_find_davinci_file(physical, paths)
        )
        for (logical, chip), physical in zip(joined, physical_ids, strict=True)
    )


def _find_logic_id(
    chip: npu_smi.NpuSmiChip, places: Mapping[tuple[int, int], npu_smi.NpuSmiMapping], order: int
) -> int:
    place = places.get((chip.npu, chip.chip))
    if place:
        return place.logical
    return chip.logical if chip.logical is not None else order


def _find_physical_id(chip: npu_smi.NpuSmiChip, places: Mapping[tuple[int, int], npu_smi.NpuSmiMapping]) -> int | None:
    place = places.get((chip.npu, chip.chip))
    return chip.physical if chip.physical is not None else place.physical if place else None


def _find_davinci_file(physical: int | None, paths: tuple[str, ...]) -> str:
    path = f"/dev/davinci{physical}"
    return path if path in paths else ""


def _make_npu_device(
    host: Host,
    table: npu_smi.NpuSmiTable,
    chip: npu_smi.NpuSmiChip,
    places: Mapping[tuple[int, int], npu_smi.NpuSmiMapping],
    shared: set[int],
) -> Device:
    bus = _normalize_bus(chip)
    node, cpus = pci.read_pci_affinity(host, bus) if bus else (None, ())
    place = places.get((chip.npu, chip.chip))
    several = chip.npu in shared or chip.physical is not None
    return Device(
        number=0,
        name=chip.name,
        memory_total=chip.memory_total,
        memory_used=chip.memory_used,
        node=node,
        health="ok" if chip.health == "OK" else chip.health,
        busy=_is_chip_busy(table, chip),
        bus=bus,
        cpus=cpus,
        architecture=find_npu_architecture(f"{place.name if place else ''} {chip.name}", several=several),
        card=chip.npu if several else None,
    )


def _with_memory(device: Device) -> Device:
    """Return the device with the memory of its model, if the tool may not read it."""
    names = (device.name.upper(), device.architecture)
    size = next((size for part, size in _MEMORY.items() if any(part in name for name in names)), 0)
    return device if device.memory_total else device._replace(memory_total=size * MIB or None)


def _normalize_bus(chip: npu_smi.NpuSmiChip) -> str:
    """Return a PCI address as /sys writes it. The tool uses capitals, and domains of up to eight digits or none."""
    head, _, rest = chip.bus.lower().rpartition(":")
    domain, _, bus = head.rpartition(":")
    return f"{domain[-4:].zfill(4)}:{bus}:{rest}" if rest else ""


def _is_chip_busy(table: npu_smi.NpuSmiTable, chip: npu_smi.NpuSmiChip) -> bool | None:
    """Tell whether a process uses a chip; None if the table does not list the processes of its card."""
    if chip.npu not in table.listed:
        return None
    return bool({(chip.npu, chip.chip), (chip.npu, None)} & table.running)


def find_npu_architecture(names: str, *, several: bool) -> str:
    """Return the target that kernels are compiled for.

    An A3 has the name Ascend910, as the first 910, which has one die.
    """
    capital = names.upper()
    family = next((family for part, family in _FAMILIES if part in capital), "")
    if family or "910" not in capital:
        return family
    return "ascend910_93" if several else "ascend910"


# --- what is near ---------------------------------------------------------------------------------------------------


def _add_topology(
    host: Host, devices: tuple[Device, ...], table: npu_smi.NpuSmiTable, topology: npu_smi.NpuSmiTopology | None
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """Return the devices with their nearby CPUs, if PCI did not report them, and the links between devices."""
    if topology is None:
        return devices, ()
    labels = {_find_topology_number(device, table, topology): device for device in devices}
    nodes = _read_node_of_cpus(host)
    near = tuple(
        device if device.cpus else _add_near_cpus(device, topology.cpus.get(label, ()), nodes)
        for label, device in labels.items()
    )
    pairs = (
        (labels[first].number, labels[second].number, kind)
        for (first, second), kind in topology.links.items()
        if first in labels and second in labels
    )
    return near, tuple(sorted(Link(min(a, b), max(a, b), kind) for a, b, kind in pairs))


def _find_topology_number(device: Device, table: npu_smi.NpuSmiTable, topology: npu_smi.NpuSmiTopology) -> int:
    """Return the number of a device in the topology: physical id, card, or logic id if cards have several devices."""
    if topology.numbering == "Phy-ID" and device.module_id is not None:
        return device.module_id
    cards = [chip.npu for chip in table.chips if device.bus and _normalize_bus(chip) == device.bus]
    return cards[0] if device.card is None and len(cards) == 1 else device.number


def _add_near_cpus(device: Device, cpus: tuple[int, ...], nodes: Mapping[int, int]) -> Device:
    node = nodes.get(cpus[0]) if cpus else None
    return device._replace(cpus=cpus, node=device.node if device.node is not None else node)


def _read_node_of_cpus(host: Host) -> dict[int, int]:
    """Return the NUMA node of each CPU."""
    node_of_cpu: dict[int, int] = {}
    for path in host.glob("/sys/devices/system/node/node[0-9]*/cpulist"):
        number = dirname(path).rpartition("node")[2]
        nothing: tuple[int, ...] = ()
        node_of_cpu.update(dict.fromkeys(host.parsed(path, parse_id_list, nothing), int(number)))
    return node_of_cpu


def _count_missing_addresses(host: Host, devices: tuple[Device, ...]) -> dict[str, str]:
    """Return the number of chips without an address in HCCL's configuration, if there is one.

    Addresses are not recorded.
    """
    text = host.lookup(HCCN, _read_address_names)
    if text is None:
        return {}
    chips = (device.number if device.module_id is None else device.module_id for device in devices)
    missing = [chip for chip in chips if f"address_{chip}" not in text.split()]
    return {"hccn_unaddressed": str(len(missing))}


def _read_address_names(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        pairs = [line.partition("=") for line in file]
    return "".join(f"{name.strip()}\n" for name, _, value in pairs if name.startswith("address_") and value.strip())


# --- versions -------------------------------------------------------------------------------------------------------


def _read_npu_versions(host: Host, run: Run, table: npu_smi.NpuSmiTable | None) -> dict[str, str]:
    """Return driver, firmware, tool and toolkit."""
    nothing: dict[str, str] = {}
    installed = host.parsed(_INSTALLED, npu_smi.parse_keys, nothing)
    root = installed.get("driver_install_path_param") or _ROOT
    versions = {
        "driver": _read_first_version(host, (f"{root}/driver/version.info",)) or (table.version if table else ""),
        "firmware": _read_first_version(host, (f"{root}/firmware/version.info",)),
        "tool": table.version if table else "",
        "toolkit": _read_first_version(
            host, (path for pattern in _TOOLKITS for path in host.glob(f"{_ROOT}/{pattern}"))
        ),
    }
    if table and not versions["firmware"]:
        card = str(table.chips[0].npu)
        board = run_tool(host, run, (_TOOL, "info", "-t", "board", "-i", card), npu_smi.parse_fields) or nothing
        versions["firmware"] = board.get("firmware version", "")
    return {name: version for name, version in versions.items() if version and version != "NA"}


def _read_first_version(host: Host, paths: Iterable[str]) -> str:
    nothing: dict[str, str] = {}
    return next(filter(None, (host.parsed(path, npu_smi.parse_keys, nothing).get("version", "") for path in paths)), "")
