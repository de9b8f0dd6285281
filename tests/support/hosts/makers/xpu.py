"""Machines with Intel GPUs that nobody had at hand."""

from __future__ import annotations

import json

from tests.support.hosts.pieces import GIB, Tree, commands, pci, sample, server

ROOT = "sys/bus/pci/devices"
NEAR = ((0, "0-23,48-71"), (1, "24-47,72-95"))


def card(bus: str, device: str, minor: int, node: int, module: str, *, told: bool = True, **files: str) -> Tree:
    """Make one card with its render node; `told` says whether the machine tells what is near it."""
    near = NEAR[node] if told else (-1, "")
    tree = pci(f"0000:{bus}:00.0", "0x8086", device, "0x030000", *near)
    return {
        **tree,
        **{f"{ROOT}/0000:{bus}:00.0/{name}": f"{text}\n" for name, text in files.items()},
        f"{ROOT}/0000:{bus}:00.0/drm/renderD{minor}": "",
        f"dev/dri/renderD{minor}": "",
        f"dev/dri/by-path/pci-0000:{bus}:00.0-render": "",
        f"sys/bus/pci/drivers/{module}/0000:{bus}:00.0": "",
    }


def host(cores: int, memory: int, runtime: str) -> Tree:
    """Make a two-socket server whose image has Intel's GPU runtime."""
    return {
        **server(cores, memory, model="Intel(R) Xeon(R) Platinum 8480+"),
        f"usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1.{runtime}": "",
        "usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1": "",
        "proc/sys/kernel/osrelease": "6.14.0-29-generic\n",
    }


def max1550() -> Tree:
    """Two Max 1550, each of two tiles, with Xe Links between the cards."""
    return {
        **host(24, 1024 * GIB, "6.33578"),
        **card("29", "0x0bd5", 128, 0, "i915", **{"drm/card1/lmem_total_bytes": str(128 * GIB)}),
        **card("9a", "0x0bd5", 129, 1, "i915", **{"drm/card2/lmem_total_bytes": str(128 * GIB)}),
        **commands({"xpu-smi topology -m": sample("xpu/xpu-smi-topology-m.pvc.txt")}),
        "sys/module/i915/version": "1.24.3.23.240419.26+i30-1\n",
        "origin": "xpu-smi topology -m of two Max cards of two tiles each (intel/xpumanager's guide); made up: PCI"
        " addresses, memory as Intel's i915 tells it, driver version, processors\n",
    }


def max1100() -> Tree:
    """One Max 1100, about whose memory the driver is silent."""
    tool = {"device_id": 0, "device_name": "Intel(R) Data Center GPU Max 1100", "number_of_tiles": 1}
    tool |= {"pci_bdf_address": "0000:29:00.0", "memory_physical_size_byte": 48 * GIB, "driver_version": "16929133"}
    answers = {
        "xpu-smi discovery -j": sample("xpu/xpu-smi-discovery-j.max1100.txt"),
        "xpu-smi discovery -d 0 -j": json.dumps(tool, indent=4),
    }
    return {
        **host(24, 512 * GIB, "6.33578"),
        **card("29", "0x0bda", 128, 0, "i915"),
        **commands(answers),
        "origin": "xpu-smi discovery -j of a Max 1100; made up: its details, processors, memory\n",
    }


def b580() -> Tree:
    """One B580 beside the processor's own graphics, with version 2 of the tool and nothing else."""
    graphics = pci("0000:00:02.0", "0x8086", "0x4680", "0x030000")
    return {
        **host(6, 64 * GIB, "14.37020"),
        **graphics,
        **card("03", "0xe20b", 129, 0, "xe", told=False),
        **commands({"xpu-smi": sample("xpu/xpu-smi.b580.v2.0.txt")}),
        f"{ROOT}/0000:00:02.0/drm/renderD128": "",
        "dev/dri/renderD128": "",
        "origin": "xpu-smi 2.0's table of a B580 (intel/xpumanager's README); made up: the processor's own graphics,"
        " processors, memory\n",
    }


def b60() -> Tree:
    """Two Arc Pro B60, whose memory the xe driver tells."""
    memory = {"tile0/physical_vram_size_bytes": "25669140480"}
    return {
        **host(16, 256 * GIB, "14.37020"),
        **card("03", "0xe211", 128, 0, "xe", **memory),
        **card("05", "0xe211", 129, 0, "xe", **memory),
        "origin": "xpumd's metrics of two Arc Pro B60 (id, PCI addresses, memory); made up: processors, memory\n",
    }


def flex170() -> Tree:
    """One Flex 170 with ECC, planned with the image of oneAPI's days."""
    answers = {"xpu-smi discovery -d 0 -j": sample("xpu/xpu-smi-discovery-d-j.flex170.txt")}
    listed = {"device_list": [{"device_id": 0, "pci_bdf_address": "0000:4d:00.0"}]}
    return {
        **host(16, 256 * GIB, "3.30049"),
        **card("4d", "0x56c0", 128, 0, "i915"),
        **commands({**answers, "xpu-smi discovery -j": json.dumps(listed)}),
        "variant": "xpu-oneapi2024.2-vllm0.7\n",
        "origin": "xpu-smi discovery -d 0 -j of a Flex 170; made up: processors, memory\n",
    }


def granted(tree: Tree) -> Tree:
    """Give a container the capabilities and the locked memory that its run line asks for."""
    status = tree["proc/self/status"].replace("CapEff:\t0000000000000000", "CapEff:\t0000000000080000")
    limits = tree["proc/self/limits"].replace("8388608  ", "unlimited")
    return {**tree, "proc/self/status": status, "proc/self/limits": limits}


def trees() -> dict[str, Tree]:
    """Return every made host: name → path → text."""
    return {
        "xpu-max1550-2x": granted(max1550()),
        "xpu-max1100-1x": granted(max1100()),
        "xpu-b580-1x": granted(b580()),
        "xpu-arc-pro-b60-2x": granted(b60()),
        "xpu-flex170-1x": granted(flex170()),
    }
