"""NVIDIA GPUs: reads /proc/driver/nvidia, /dev and /sys, then nvidia-smi for memory, capability, health and links.

The NVIDIA runtime shows a container only its own GPUs. CUDA_VISIBLE_DEVICES selects some of them and renumbers them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from entrypoints.core.parse import parse_fields, parse_version_numbers
from entrypoints.core.records import Device, Link, ProbeResult
from entrypoints.facts.derived import describe_missing_choice
from entrypoints.facts.probes.common.pci import read_pci_affinity
from entrypoints.facts.probes.common.steps import drop_empty_values
from entrypoints.facts.probes.common.tools import TIMEOUT, run_tool
from entrypoints.facts.probes.cuda.gpu_models import find_instance_memory, find_memory, is_unified
from entrypoints.facts.probes.cuda.nvidia_smi import (
    Gpu,
    Listed,
    NvidiaSmiTable,
    NvidiaSmiTopology,
    Slice,
    parse_fabric,
    parse_list,
    parse_lost,
    parse_nvidia_table,
    parse_nvidia_topology,
    parse_query,
)
from entrypoints.host.commands import NOT_FOUND
from entrypoints.host.host import Host, Result, Run

TOOL = "nvidia-smi"
DEVICE_TOOL = (TOOL,)
VISIBLE = "CUDA_VISIBLE_DEVICES"
_WSL = "/dev/dxg"
"""Windows' driver behind it has no `nvidia-smi topo`, as operators report."""
COMPAT, COMPAT_FOLDER = "VLLM_ENABLE_CUDA_COMPATIBILITY", "VLLM_CUDA_COMPATIBILITY_PATH"
"""vLLM's variables for NVIDIA's forward compatibility libraries (cuda-compat)."""

LEAST = ("index", "name", "memory.total")
OLD = (
    *("index", "name", "uuid", "pci.bus_id", "memory.total", "memory.used", "driver_version", "persistence_mode"),
    *("compute_mode", "ecc.errors.uncorrected.volatile.total"),
)
"""Columns that drivers before 450 support."""
FULL = (*OLD, "compute_cap", "mig.mode.current")
"""compute_cap needs driver 510. An older driver rejects the whole query."""

_CAPABILITIES = {
    **dict.fromkeys(("K20", "K40"), "3.5"),
    **dict.fromkeys(("K80",), "3.7"),
    **dict.fromkeys(("M4", "M40", "M60", "GTX 9"), "5.2"),
    **dict.fromkeys(("P100",), "6.0"),
    **dict.fromkeys(("P4", "P40", "P2000", "P4000", "P5000", "P6000", "GTX 10"), "6.1"),
    **dict.fromkeys(("V100",), "7.0"),
    **dict.fromkeys(("T4", "RTX 20", "GTX 16"), "7.5"),
    **dict.fromkeys(("A100", "A30"), "8.0"),
    **dict.fromkeys(("A2", "A10", "A10G", "A16", "A40", "RTX 30"), "8.6"),
    **dict.fromkeys(("L4", "L40", "L40S", "RTX 40"), "8.9"),
    **dict.fromkeys(("H100", "H200", "GH200"), "9.0"),
}
"""Word of the GPU's name → compute capability, for drivers before 510; from NVIDIA's page on CUDA GPUs."""

_CONSUMER = ("GeForce", "TITAN")
"""Brands of GPUs that forward compatibility does not support, as words of the GPU's name."""

_DRIVERS_OWN = 1 << 30
"""Bytes. The driver itself uses less than this (0.5 GiB on an H100), so more means that a process uses the GPU."""
_VERSION = re.compile(r"(?<!\d)\d+\.\d+(?:\.\d+)*")
_PROC = "/proc/driver/nvidia"
_TRAYS = ("GH200", "GB200", "GB300")
"""Names of GPUs that racks join by NVLink: NVL32, NVL36, NVL72."""


class ProcGpu(NamedTuple):
    """One GPU in /proc/driver/nvidia."""

    name: str
    uuid: str
    path: str
    """/dev/nvidia0. The minor number may differ from nvidia-smi's index."""


class CudaDevice(NamedTuple):
    """One device in CUDA's numbering: a GPU, or a MIG instance."""

    gpu: Gpu
    part: Slice | None = None
    listed: Listed | None = None

    @property
    def uuid(self) -> str:
        """Return the identifier that CUDA_VISIBLE_DEVICES accepts; empty if it is unknown."""
        if self.listed:
            return self.listed.uuid
        return "" if self.part else self.gpu.uuid


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the GPUs that CUDA can use in this container."""
    cards = _read_driver_gpus(host)
    nodes = host.glob("/dev/nvidia[0-9]*") or host.glob(_WSL)
    kernel = host.parsed(f"{_PROC}/version", _parse_version, "")
    run = _watch_lost_gpus(host, run)
    gpus = _query_gpus(host, run)
    table = run_tool(host, run, (TOOL,), parse_nvidia_table)
    if not gpus and table is None:
        return _from_files(host, cards, nodes, kernel)
    gpus = tuple(map(_add_capability, _merge_gpus(gpus, table.gpus if table else ())))
    if len(gpus) < len(nodes) and not host.failures:
        host.fail(
            TOOL,
            f"{len(gpus)} GPUs, for {', '.join(nodes)}",
            "a GPU for each device file; the driver may have lost one",
        )
    has_topology = len(gpus) > 1 and not host.exists(_WSL)
    topology = run_tool(host, run, (TOOL, "topo", "-m"), parse_nvidia_topology) if has_topology else None
    present = _list_cuda_devices(host, run, gpus, table)
    places = select_cuda_visible(present, env.get(VISIBLE))
    devices = tuple(
        _make_cuda_device(host, number, place, _Around(cards, table, topology)) for number, place in enumerate(places)
    )
    _require_memory(host, devices)
    knobs = {
        **_read_driver_modes(gpus),
        **_read_forward_compat(host, env),
        **_read_nvlink_cluster(host, run, gpus),
        **describe_missing_choice(VISIBLE, map(str.strip, env.get(VISIBLE, "").split(",")), len(present)),
    }
    return ProbeResult(devices, _list_gpu_links(places, topology), _describe_gpu_versions(gpus, table, kernel), knobs)


class _Around(NamedTuple):
    """Data about all GPUs from other sources."""

    cards: Mapping[str, ProcGpu]
    table: NvidiaSmiTable | None
    topology: NvidiaSmiTopology | None


# --- files ----------------------------------------------------------------------------------------------------------


def _read_driver_gpus(host: Host) -> dict[str, ProcGpu]:
    """Return the driver's GPUs by PCI address."""
    paths = host.glob(f"{_PROC}/gpus/*/information")
    cards = {path.split("/")[5].lower(): host.parsed(path, _parse_information, None) for path in paths}
    return {bus: card for bus, card in cards.items() if card}


def _parse_information(text: str) -> ProcGpu:
    """Parse /proc/driver/nvidia/gpus/<address>/information."""
    fields = parse_fields(text)
    if "model" not in fields:
        raise ValueError("a line `Model: …`")
    minor = fields.get("device minor", "")
    return ProcGpu(fields["model"], fields.get("gpu uuid", ""), f"/dev/nvidia{minor}" if minor.isdecimal() else "")


def _parse_version(text: str) -> str:
    """Parse /proc/driver/nvidia/version: `NVRM version: NVIDIA UNIX … Kernel Module  580.95.05  …`."""
    match = _VERSION.search(parse_fields(text).get("nvrm version", ""))
    if not match:
        raise ValueError("a line `NVRM version: … 580.95.05 …`")
    return match[0]


def _from_files(host: Host, cards: Mapping[str, ProcGpu], nodes: tuple[str, ...], kernel: str) -> ProbeResult:
    """Return the GPUs as known from files only, without their memory, and add a failure."""
    if not cards and not nodes:
        return ProbeResult(versions={"driver": kernel} if kernel else {})
    if not any(failure.where.startswith(TOOL) for failure in host.failures):
        expected = "the driver's tool: docker run --gpus all, with `utility` in NVIDIA_DRIVER_CAPABILITIES"
        host.fail(TOOL, "command not found, so the memory of the GPUs is unknown", expected)
    driver_gpus = [(bus, card) for bus, card in sorted(cards.items())] or [
        ("", ProcGpu("", "", path)) for path in nodes
    ]
    devices = (
        Device(
            number,
            card.name,
            None,
            None,
            read_pci_affinity(host, bus)[0] if bus else None,
            bus=bus,
            path=card.path,
            uuid=card.uuid,
        )
        for number, (bus, card) in enumerate(driver_gpus)
    )
    return ProbeResult(tuple(devices), versions={"driver": kernel} if kernel else {})


# --- the tool -------------------------------------------------------------------------------------------------------


def _watch_lost_gpus(host: Host, run: Run) -> Run:
    """Return a Run that also adds a failure for each GPU that the output reports as lost. The exit code may be 0."""
    reported: set[str] = set()

    def watched(argv: tuple[str, ...], timeout: float) -> Result:
        result = run(argv, timeout)
        for line in parse_lost(f"{result.stdout}\n{result.stderr}"):
            if line not in reported:
                host.fail(TOOL, line[:240], "a driver that reaches every GPU; see the Xid in dmesg, reset or reboot")
            reported.add(line)
        return result

    return watched


def _query_gpus(host: Host, run: Run) -> tuple[Gpu, ...]:
    """Query all columns, or if the driver rejects them, those of older drivers."""
    for columns in (FULL, OLD, LEAST):
        argv = (TOOL, f"--query-gpu={','.join(columns)}", "--format=csv")
        result = run(argv, TIMEOUT)
        refused = result.rc and "not a valid field" in result.stdout + result.stderr
        if result.rc != NOT_FOUND and not refused:
            return run_tool(host, lambda *_, answer=result: answer, argv, parse_query) or ()
    return ()


def _merge_gpus(queried: tuple[Gpu, ...], tabled: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the queried GPUs with missing values from the table."""
    rows = {gpu.number: gpu for gpu in tabled}
    if not queried:
        return tabled
    return tuple(_fill_from_table(gpu, rows[gpu.number]) if gpu.number in rows else gpu for gpu in queried)


def _fill_from_table(gpu: Gpu, row: Gpu) -> Gpu:
    missing = {name: value for name, value in row._asdict().items() if getattr(gpu, name) in ("", None)}
    filled = gpu._replace(**missing)
    return filled._replace(health=row.health) if gpu.health == "ok" and row.health else filled


def _add_capability(gpu: Gpu) -> Gpu:
    """Return the GPU with its compute capability, looked up by name if the driver is too old to report it."""
    words = re.split(r"[ -]", gpu.name)
    series = (f"{kind} {word[:2]}" for kind, word in pairwise(words))
    capabilities = (_CAPABILITIES[word] for word in (*words, *series) if word in _CAPABILITIES)
    return gpu if gpu.capability else gpu._replace(capability=next(capabilities, ""))


def _list_cuda_devices(
    host: Host, run: Run, gpus: Iterable[Gpu], table: NvidiaSmiTable | None
) -> tuple[CudaDevice, ...]:
    """Return the devices in CUDA's numbering: GPUs, and the instances of GPUs with MIG."""
    gpus = tuple(gpus)
    slices = table.slices if table else ()
    split = any(gpu.mig for gpu in gpus)
    listed = (run_tool(host, run, (TOOL, "-L"), parse_list) or ()) if split else ()
    names = {(item.gpu, item.number): item for item in listed}
    places: list[CudaDevice] = []
    for gpu in gpus:
        parts = [part for part in slices if part.gpu == gpu.number]
        if gpu.mig and not parts:
            expected = "instances (nvidia-smi mig -cgi … -C), or MIG off (nvidia-smi -mig 0)"
            host.fail(TOOL, f"GPU {gpu.number} has MIG enabled, but no instance is visible", expected)
        elif gpu.mig:
            places += [CudaDevice(gpu, part, names.get((part.gpu, part.number))) for part in parts]
        else:
            places.append(CudaDevice(gpu))
    return tuple(places)


def select_cuda_visible(places: tuple[CudaDevice, ...], chosen: str | None) -> tuple[CudaDevice, ...]:
    """Return the devices that CUDA_VISIBLE_DEVICES selects, in its order, or all if it is not set.

    Its entries are numbers or prefixes of UUIDs. As in CUDA, the first invalid entry and all after it are ignored.
    """
    if chosen is None:
        return places
    devices: list[CudaDevice] = []
    for word in chosen.split(","):
        place = _find_cuda_device(places, word.strip())
        if place is None or place in devices:
            break
        devices.append(place)
    return tuple(devices)


def _find_cuda_device(places: tuple[CudaDevice, ...], word: str) -> CudaDevice | None:
    if word.isascii() and word.isdecimal():
        return places[int(word)] if len(word) < 5 and int(word) < len(places) else None  # noqa: PLR2004 - a number of digits that no machine needs
    matching_devices = [place for place in places if word and place.uuid.startswith(word)]
    return matching_devices[0] if len(matching_devices) == 1 else None


# --- result ---------------------------------------------------------------------------------------------------------


def _make_cuda_device(host: Host, number: int, place: CudaDevice, around: _Around) -> Device:
    gpu, part = place.gpu, place.part
    node, cpus = read_pci_affinity(host, gpu.bus) if gpu.bus else (None, ())
    if around.topology:
        node = around.topology.nodes.get(gpu.number) if node is None else node
        cpus = cpus or around.topology.cpus.get(gpu.number, ())
    card = around.cards.get(gpu.bus)
    profile = f" MIG {place.listed.profile}" if place.listed else " MIG" if part else ""
    return Device(
        number=number,
        name=gpu.name + profile,
        memory_total=_find_gpu_memory(place),
        memory_used=part.memory_used if part else gpu.memory_used,
        node=node,
        health=gpu.health,
        busy=_is_busy(place, around.table),
        bus=gpu.bus,
        cpus=cpus,
        architecture=gpu.capability,
        path=card.path if card else "",
        card=gpu.number if part else None,
        uuid=place.uuid,
    )


def _find_gpu_memory(place: CudaDevice) -> int | None:
    """Return the size that the tool prints, or if it may not read it, that of the model; None for unified memory."""
    if place.part:
        profile = place.listed.profile if place.listed else ""
        return place.part.memory_total or find_instance_memory(profile)
    return place.gpu.memory_total or find_memory(place.gpu.name)


def _is_busy(place: CudaDevice, table: NvidiaSmiTable | None) -> bool:
    """Tell whether a process computes on a device: the table lists it, or nothing else explains the memory in use.

    The windows of a desktop take memory, and leave enough for a server or not: that is decided by how much is free. In
    a container the tool does not list them, so a GPU that drives a screen is judged by its free memory alone.
    """
    gpu, used_bytes = place.gpu, place.part.memory_used if place.part else place.gpu.memory_used
    row = next((row for row in table.gpus if row.number == gpu.number), gpu) if table else gpu
    if table and gpu.number in table.computing and not place.part:
        return True
    if used_bytes is None or row.display:
        return False
    drawn = table.drawing if table and not place.part else {}
    if drawn.get(gpu.number) == 0:  # the driver for Windows does not say how much each process uses
        return False
    return used_bytes - drawn.get(gpu.number, 0) > _DRIVERS_OWN


def _require_memory(host: Host, devices: Iterable[Device]) -> None:
    """Add a failure for the devices with memory of their own whose size is not known."""
    unknown = [
        device for device in devices if not device.memory_total and not is_unified(device.name) and _is_well(device)
    ]
    if unknown:
        problem = f"no memory size for {', '.join(f'{device.number}: {device.name}' for device in unknown)}"
        host.fail(TOOL, problem, "memory.total, which nvidia-smi may read with CAP_SYS_ADMIN or on the host")


def _is_well(device: Device) -> bool:
    return device.health in ("", "ok")


def _list_gpu_links(places: tuple[CudaDevice, ...], topology: NvidiaSmiTopology | None) -> tuple[Link, ...]:
    """Return the links between visible GPUs, by their numbers in this container."""
    if topology is None:
        return ()
    kinds = {(link.first, link.second): link.kind for link in topology.links}
    indexes = [place.gpu.number for place in places]
    pairs = ((one, second) for second in range(len(places)) for one in range(second))
    indexed_pairs = ((one, second, tuple(sorted((indexes[one], indexes[second])))) for one, second in sorted(pairs))
    return tuple(Link(one, second, kinds[pair]) for one, second, pair in indexed_pairs if pair in kinds)


def _describe_gpu_versions(gpus: tuple[Gpu, ...], table: NvidiaSmiTable | None, kernel: str) -> dict[str, str]:
    """Return the driver's version, the newest CUDA that it supports, and the lowest and highest compute capability."""
    capabilities = sorted((gpu.capability for gpu in gpus if gpu.capability), key=parse_version_numbers)
    driver = kernel or (table.driver if table else "") or gpus[0].driver
    versions = {
        "driver": driver,
        "driver_branch": driver.partition(".")[0],
        "cuda": table.cuda if table else "",
        "compute_capability": capabilities[0] if capabilities else "",
        "compute_capability_highest": capabilities[-1] if capabilities else "",
    }
    return drop_empty_values(versions)


def _read_driver_modes(gpus: tuple[Gpu, ...]) -> dict[str, str]:
    """Return the driver's persistence and compute mode. If GPUs differ, return the value that is not the usual one."""
    modes = {gpu.compute_mode for gpu in gpus if gpu.compute_mode}
    persistence_modes = {gpu.persistence for gpu in gpus if gpu.persistence}
    settings = {
        "gpu_persistence_mode": "Off" if "Off" in persistence_modes else "On" if persistence_modes else "",
        "gpu_compute_mode": min(modes - {"Default"}, default="Default" if modes else ""),
        "gpu_brand": next((brand for brand in _CONSUMER if any(brand in gpu.name for gpu in gpus)), ""),
    }
    return drop_empty_values(settings)


def _read_nvlink_cluster(host: Host, run: Run, gpus: tuple[Gpu, ...]) -> dict[str, str]:
    """Return the cluster of hosts whose GPUs NVLink joins; only trays of such racks are asked."""
    if not any(tray in gpu.name for gpu in gpus for tray in _TRAYS):
        return {}
    return drop_empty_values({"nvlink_cluster": run_tool(host, run, (TOOL, "-q"), parse_fabric) or ""})


def _read_forward_compat(host: Host, env: Mapping[str, str]) -> dict[str, str]:
    """Return the version and the folder of NVIDIA's forward compatibility libraries, if the user enabled them."""
    if env.get(COMPAT, "").strip().lower() not in ("1", "true"):
        return {}
    paths = host.glob(f"{env.get(COMPAT_FOLDER) or '/usr/local/cuda-[0-9]*/compat'}/libcuda.so.[0-9]*.[0-9]*")
    folder, _, version = paths[-1].partition("/libcuda.so.") if paths else ("", "", "")
    return drop_empty_values({"cuda_compat": version, "cuda_compat_folder": folder})
