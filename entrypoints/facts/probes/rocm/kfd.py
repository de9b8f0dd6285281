"""AMD GPUs in /sys/class/kfd, from the kernel's compute driver. IO only through `Host`.

Its nodes are in HIP's order of devices; amd-smi may have another order. If the device cgroup of a container lacks a
GPU, the kernel denies access to the node of that GPU (linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from os.path import basename, dirname
from typing import NamedTuple

from entrypoints.core.records import Link
from entrypoints.facts.probes.common.tools import parse_error
from entrypoints.host.host import Host

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_PROCESSES = "/sys/class/kfd/kfd/proc"
_FRAME_BUFFERS = (1, 2)
"""Heap types of the GPU's own memory: public and private. Type 0 is host memory."""
_LINKS = {11: "XGMI", 2: "PCIE"}
"""Link types, from linux/uapi/linux/kfd_sysfs.h."""
_PARTITION_BIT = 28
"""From this bit on, location_id holds the number of the partition."""


class GpuNode(NamedTuple):
    """One GPU, or one partition or die of it."""

    node: int
    """Number in the topology, in which CPUs also have numbers."""
    gpu: str
    """The driver's id, by which the memory of processes is listed."""
    bus: str
    partition: int
    architecture: str
    device: str
    """PCI device id: 0x74a1."""
    memory: int | None
    minor: int
    """Number of its render node: /dev/dri/renderD<minor>."""
    unique: str
    """The identifier in ROCR_VISIBLE_DEVICES: GPU-0cee36ddc4255115."""


class Wire(NamedTuple):
    """A link between two nodes, and its bandwidth in MB/s, or 0 if the kernel does not report it."""

    link: Link
    bandwidth: int


def list_kfd_nodes(host: Host) -> tuple[GpuNode, ...]:
    """Return the GPUs that are visible in this container, in HIP's order."""
    paths = (dirname(path) for path in host.glob(f"{_NODES}/*/properties"))
    pairs = ((path, _read_properties(host, f"{path}/properties")) for path in paths)
    return tuple(
        _read_kfd_node(host, path, properties) for path, properties in pairs if properties.get("gfx_target_version")
    )


def list_kfd_wires(host: Host, gpus: tuple[GpuNode, ...]) -> tuple[Wire, ...]:
    """Return the links between GPUs, by their index in `gpus`. If a pair has xGMI and PCIe, return xGMI."""
    places = {gpu.node: place for place, gpu in enumerate(gpus)}
    best: dict[tuple[int, int], Wire] = {}
    for gpu in gpus:
        for kind in ("io_links", "p2p_links"):
            for path in host.glob(f"{_NODES}/{gpu.node}/{kind}/*/properties"):
                _add_best_wire(best, _read_properties(host, path), places)
    return tuple(best[pair] for pair in sorted(best))


def _add_best_wire(best: dict[tuple[int, int], Wire], properties: Mapping[str, int], places: Mapping[int, int]) -> None:
    ends = sorted(places.get(properties.get(name, -1), -1) for name in ("node_from", "node_to"))
    kind = _LINKS.get(properties.get("type", -1), "")
    if ends[0] < 0 or ends[0] == ends[1] or not kind:
        return
    wire = Wire(Link(ends[0], ends[1], kind), properties.get("max_bandwidth", 0))
    pair = (ends[0], ends[1])
    if pair not in best or (kind == "XGMI", wire.bandwidth) > (best[pair].link.kind == "XGMI", best[pair].bandwidth):
        best[pair] = wire


def sum_process_memory(host: Host, gpu: str) -> int:
    """Return the bytes of a GPU's memory that processes use, including those of other containers."""
    return sum(
        host.parsed(path, _parse_memory_bytes, 0, hidden=True) for path in host.glob(f"{_PROCESSES}/*/vram_{gpu}")
    )


def _read_kfd_node(host: Host, path: str, properties: Mapping[str, int]) -> GpuNode:
    location, banks = properties.get("location_id", 0), host.glob(f"{path}/mem_banks/*/properties")
    memory = [_read_properties(host, bank) for bank in banks]
    sizes = [bank.get("size_in_bytes", 0) for bank in memory if bank.get("heap_type") in _FRAME_BUFFERS]
    place, function = location >> 8 & 0xFF, location & 0xFF
    return GpuNode(
        node=int(basename(path)),
        gpu=(host.text(f"{path}/gpu_id", hidden=True) or "").strip(),
        bus=f"{properties.get('domain', 0):04x}:{place:02x}:{function >> 3:02x}.{function & 7}",
        partition=location >> _PARTITION_BIT,
        architecture=format_gfx_target(properties["gfx_target_version"]),
        device=f"{properties.get('device_id', 0):#06x}",
        memory=sum(sizes) or properties.get("local_mem_size") or None,
        minor=properties.get("drm_render_minor", -1),
        unique=f"GPU-{properties.get('unique_id', 0):016x}",
    )


def format_gfx_target(version: int) -> str:
    """Return the target that kernels are compiled for: 90402 → gfx942, 90010 → gfx90a, 110001 → gfx1101."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _read_properties(host: Host, path: str) -> dict[str, int]:
    return host.parsed(path, parse_properties, {}, hidden=True)


def parse_properties(text: str) -> dict[str, int]:
    """Parse `name number` lines. An empty file has none. Raises ValueError."""
    properties: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if not (name.isidentifier() and value.isascii() and value.lstrip("-").isdigit() and len(value) <= 20):  # noqa: PLR2004 - 64 bits
            raise parse_error(line, "a name and a number")
        properties[name] = int(value)
    return properties


def _parse_memory_bytes(text: str) -> int:
    """Parse a number of bytes. It may be negative for a moment while a process ends; then return 0."""
    word = text.strip()
    if not (word.isascii() and word.lstrip("-").isdigit() and len(word) <= 20):  # noqa: PLR2004 - 64 bits
        raise parse_error(text, "a number of bytes")
    return max(0, int(word))
