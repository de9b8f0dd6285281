"""AMD machines that nobody had at hand."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.support.hosts.pieces import GIB, ICX_FLAGS, Tree, commands, cpuinfo_x86, pci, sample, server

NODES = "sys/class/kfd/kfd/topology/nodes"
EPYC = "AMD EPYC 9654 96-Core Processor"
VERSIONS = {"mi300x": 90402, "mi250": 90010, "rx7900xtx": 110000}
MI300X = ("26", "46", "05", "65", "85", "a6", "c5", "e5")
"""Buses of an eight-GPU machine; the first two are a real one's."""
MI355X = ("0d", "26", "5d", "75", "8e", "a7", "dc", "f4")


def properties(**values: int) -> str:
    """Format a file of the compute driver."""
    return "".join(f"{name} {value}\n" for name, value in values.items())


def gpu(node: int, bus: str, version: int, device: int, memory: int, partition: int = 0) -> Tree:
    """Make one GPU as the compute driver lists it, and its device file."""
    root, minor = f"{NODES}/{node}", 126 + node
    location = int(bus, 16) << 8 | partition << 28
    return {
        f"{root}/gpu_id": f"{4096 + node}\n",
        f"{root}/properties": properties(
            cpu_cores_count=0,
            simd_count=1216,
            gfx_target_version=version,
            vendor_id=4098,
            device_id=device,
            location_id=location,
            domain=0,
            drm_render_minor=minor,
            unique_id=0xA0000000000000 + node,
            num_xcc=8,
        ),
        f"{root}/mem_banks/0/properties": properties(heap_type=1, size_in_bytes=memory, flags=0, width=8192),
        f"dev/dri/renderD{minor}": "",
    }


def card(bus: str, device: str, used: int, node: int, cpus: str, **more: str) -> Tree:
    """Make one GPU as the PCI bus lists it."""
    root = f"sys/bus/pci/devices/0000:{bus}:00.0"
    files = {"mem_info_vram_used": str(used), "ras/umc_err_count": "ue: 0\nce: 0", **more}
    tree = pci(f"0000:{bus}:00.0", "0x1002", device, "0x120000", node, cpus)
    return tree | {f"{root}/{name}": f"{value}\n" for name, value in files.items()}


def wires(nodes: Sequence[int], kind: int, folder: str, widest: Sequence[tuple[int, int]] = ()) -> Tree:
    """Link every node with every other one; those in `widest` four times as wide, as two dies of one package are."""
    tree: Tree = {}
    for first in nodes:
        for place, second in enumerate(node for node in nodes if node != first):
            wide = (min(first, second), max(first, second)) in widest
            tree[f"{NODES}/{first}/{folder}/{place}/properties"] = properties(
                type=kind, node_from=first, node_to=second, weight=15, max_bandwidth=200000 if wide else 50000
            )
    return tree


def host(memory: int, cores: int, driver: str, rocm: str) -> Tree:
    """Make an EPYC server with the compute driver loaded: the first two of its nodes are the processors."""
    return {
        **server(cores, memory, model=EPYC),
        "proc/cpuinfo": cpuinfo_x86("AuthenticAMD", EPYC, ICX_FLAGS + " avx512_bf16"),
        "dev/kfd": "",
        "opt/rocm/.info/version": f"{rocm}\n",
        "proc/sys/kernel/osrelease": "5.15.0-116-generic\n",
        "sys/class/kfd/kfd/proc/4711/vram_1": "0\n",
        "sys/module/amdgpu/version": f"{driver}\n",
        **{f"{NODES}/{node}/properties": properties(cpu_cores_count=cores, simd_count=0) for node in (0, 1)},
    }


def mi300x() -> Tree:
    """Eight MI300X, all linked with all."""
    tree = host(2304 * GIB, 96, "6.10.5", "7.2.3-43")
    for number, bus in enumerate(MI300X):
        near = (0, "0-95,192-287") if number < 4 else (1, "96-191,288-383")
        tree |= gpu(number + 2, bus, VERSIONS["mi300x"], 0x74A1, 206141652992)
        tree |= card(bus, "0x74a1", 284 << 20, *near, product_name="AMD Instinct MI300X OAM")
    return {
        **tree,
        **wires(range(2, 10), 11, "io_links"),
        "sys/bus/pci/devices/0000:26:00.0/current_compute_partition": "SPX\n",
        "sys/bus/pci/devices/0000:26:00.0/current_memory_partition": "NPS1\n",
        "origin": "gpustack's record of two MI300X (names, memory, driver, buses, NUMA node) and the kernel's layout of"
        " /sys/class/kfd; made up: six more GPUs, links, processors, memory\n",
    }


def mi300x_cpx() -> Tree:
    """One MI300X in eight partitions; another container's process holds some of the first one's memory."""
    tree = host(1152 * GIB, 48, "6.12.12", "7.0.2-56")
    for number in range(8):
        tree |= gpu(number + 2, "26", VERSIONS["mi300x"], 0x74A1, 206141652992 // 8, number)
    return {
        **tree,
        **card("26", "0x74a1", 3 * GIB, 0, "0-47,96-143"),
        "sys/class/kfd/kfd/proc/4711/vram_4098": f"{2 * GIB}\n",
        "sys/bus/pci/devices/0000:26:00.0/current_compute_partition": "CPX\n",
        "sys/bus/pci/devices/0000:26:00.0/current_memory_partition": "NPS4\n",
        "origin": "a public issue on CPX in containers (modes, device id) and the kernel's /sys/class/kfd; made"
        " up: buses, memory of each partition, processors, memory\n",
    }


def mi250() -> Tree:
    """Four MI250X of two dies each, as LUMI's nodes have them; a process holds the first die's memory."""
    tree = host(512 * GIB, 32, "6.3.6", "6.3.1-48")
    for number, bus in enumerate(("c1", "c6", "c9", "ce", "d1", "d6", "d9", "de")):
        tree |= gpu(number + 2, bus, VERSIONS["mi250"], 0x7408, 68702699520)
        tree |= card(bus, "0x7408", 33554432000 if number == 0 else 11288576, number // 4, "")
    pairs = [(node, node + 1) for node in range(2, 10, 2)]
    return {
        **tree,
        **wires(range(2, 10), 11, "io_links", pairs),
        "sys/class/kfd/kfd/proc/4712/vram_4098": "33554432000\n",
        "variant": "rocm6.3-vllm0.8\n",
        "origin": "rocm-smi --showmeminfo of two MI250X dies (memory, use) and the kernel's /sys/class/kfd; made"
        " up: buses, six more dies, links, processors, memory\n",
    }


def rx7900xtx() -> Tree:
    """Two Radeon cards on PCIe."""
    tree = host(128 * GIB, 16, "6.10.5", "6.3.4-76")
    for number, bus in enumerate(("03", "0a")):
        tree |= gpu(number + 2, bus, VERSIONS["rx7900xtx"], 0x744C, 25753026560)
        tree |= card(bus, "0x744c", 28 << 20, 0, "0-15,32-47")
    return {
        **tree,
        **wires((2, 3), 2, "p2p_links"),
        "variant": "rocm6.3-navi-vllm0.8\n",
        "origin": "public fixtures of RX 7900 XTX nodes (memory, device id) and the kernel's layout of /sys/class/kfd;"
        " made up: buses, links, processors, memory\n",
    }


def mi355x() -> Tree:
    """Eight MI355X in a sandbox that hides /sys/class/kfd, so that the tools must tell."""
    entries = [
        {
            "gpu": number,
            "asic": {
                "market_name": "AMD Instinct MI355X",
                "device_id": "0x75a3",
                "target_graphics_version": "gfx950",
            },
            "bus": {"bdf": f"0000:{bus}:00.0"},
            "vram": {"type": "HBM3E", "size": {"value": 294896, "unit": "MB"}},
            "driver": {"name": "amdgpu", "version": "6.14.14"},
        }
        for number, bus in enumerate(MI355X)
    ]
    tree = server(64, 3096 * 10**9, model="AMD EPYC 9575F 64-Core Processor")
    for number, bus in enumerate(MI355X):
        near = (0, "0-63,128-191") if number < 4 else (1, "64-127,192-255")
        tree |= pci(f"0000:{bus}:00.0", "0x1002", "0x75a3", "0x120000", *near)
    return {
        **tree,
        **commands(
            {
                "amd-smi static --asic --bus --vram --driver --json": json.dumps({"gpu_data": entries}, indent=4),
                "amd-smi topology": sample("rocm/amd-smi-topology.mi355x-8x.txt"),
            }
        ),
        "dev/kfd": "",
        **{f"dev/dri/renderD{128 + number}": "" for number in range(8)},
        "origin": "amd-smi topology and numactl of an MI355X machine, amd-smi static after that of an MI300X; made"
        " up: memory, driver, NUMA node of each GPU, processors\n",
    }


def granted(tree: Tree) -> Tree:
    """Give a container the capabilities and the locked memory that its run line asks for."""
    status = tree["proc/self/status"].replace("CapEff:\t0000000000000000", "CapEff:\t0000000000880000")
    limits = tree["proc/self/limits"].replace("8388608  ", "unlimited")
    return {**tree, "proc/self/status": status, "proc/self/limits": limits}


def trees() -> dict[str, Tree]:
    """Return every made host: name → path → text."""
    return {
        "rocm-mi300x-8x": granted(mi300x()),
        "rocm-mi300x-cpx": granted(mi300x_cpx()),
        "rocm-mi250x-4x": granted(mi250()),
        "rocm-rx7900xtx-2x": granted(rx7900xtx()),
        "rocm-mi355x-8x": granted(mi355x()),
    }
