"""Gaudi hosts that nobody's machine was at hand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tests.support.hosts.pieces import GIB, Tree, commands, pci, sample, server

CPUS = {0: "0-39,80-119", 1: "40-79,120-159"}
"""Of the two sockets that `server` makes with 40 cores each."""


SYS_NICE = 1 << 23
"""CAP_SYS_NICE, which these containers are given."""


class Card(NamedTuple):
    """One card: its number, its PCI bus, its module and its NUMA node."""

    number: int
    bus: str
    module: int
    node: int


def cards(device: str, places: Iterable[Card], driver: str, firmware: str) -> Tree:
    """Make the files of the cards and of their driver."""
    tree: Tree = {"sys/module/habanalabs/version": f"{driver}\n"}
    for card in places:
        folder = f"sys/class/accel/accel{card.number}/device"
        tree |= pci(f"0000:{card.bus}:00.0", "0x1da3", device, "0x120000", card.node, CPUS[card.node])
        tree |= {
            f"dev/accel/accel{card.number}": "",
            f"dev/accel/accel_controlD{card.number}": "",
            f"{folder}/pci_addr": f"0000:{card.bus}:00.0\n",
            f"{folder}/module_id": f"{card.module}\n",
            f"{folder}/preboot_btl_ver": f"Preboot version {firmware}\n",
            f"{folder}/status": "Operational\n",
        }
    return tree


def tuned() -> Tree:
    """Make a host that is set up as the manual says."""
    return {
        "proc/sys/vm/nr_hugepages": "15000\n",
        "proc/sys/kernel/osrelease": "5.15.0-119-generic\n",
        "sys/module/intel_idle/parameters/max_cstate": "0\n",
        "sys/devices/system/cpu/intel_pstate/status": "active\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    }


def machine(answers: Mapping[str, str], files: Tree, origin: str, **more: str) -> Tree:
    """Make an eight-card server with those answers of its tools."""
    plain = server(40, 1024 * GIB)
    given = {
        "proc/self/status": plain["proc/self/status"].replace(f"CapEff:\t{0:016x}", f"CapEff:\t{SYS_NICE:016x}"),
        "proc/self/limits": plain["proc/self/limits"].replace("8388608", "unlimited"),
    }
    return {**plain, **given, **tuned(), **files, **commands(answers), "origin": f"{origin}\n", **more}


def gaudi2() -> Tree:
    """Eight OAM cards behind two processors; a Ray worker holds one."""
    buses = ("b3", "b4", "cc", "cd", "19", "1a", "43", "44")
    places = [Card(number, bus, (number + 4) % 8, int(number < 4)) for number, bus in enumerate(buses)]
    files = cards("0x1020", places, "1.22.0-94aac46", "hl-gaudi2-1.22.0-fw-60.1.0-sec-9")
    table = sample("habana/hl-smi.gaudi2-8x.hl-1.16.0.txt").replace("1.16.0", "1.22.0")
    origin = (
        "hl-smi and lspci of a Gaudi2 host with a Xeon 8380, its versions raised to 1.22.0; made up: the driver's"
        " files, module numbers, firmware, memory, knobs"
    )
    return machine({"hl-smi": table}, files, origin)


def software(release: str, *without: str) -> Tree:
    """Make the files by which the vendor's packages of an image are known, without those named."""
    debs = ("habanalabs-firmware-tools", "habanalabs-graph", "habanalabs-rdma-core", "habanalabs-thunk")
    wheels = ("habana_media_loader", "habana_pyhlml", "habana_torch_dataloader", "habana_torch_plugin")
    files = {f"var/lib/dpkg/info/{name}.list" for name in debs if name not in without}
    folder = "usr/local/lib/python3.10/dist-packages"
    files |= {f"{folder}/{name}-{release}.dist-info/METADATA" for name in wheels if name not in without}
    files |= {f"{folder}/neural_compressor_pt-3.2.dist-info/METADATA"}
    return dict.fromkeys(sorted(files), "")


def gaudi2e(release: str = "1.23.0") -> Tree:
    """Eight PCIe cards whose places only the tool knows: module numbers are not the kernel's."""
    buses = ("2a", "aa", "29", "ab", "3a", "bb", "3b", "bc")
    files: Tree = {"sys/module/habanalabs/version": f"{release}-2eae87a\n"}
    for number, bus in enumerate(buses):
        files |= pci(f"0000:{bus}:00.0", "0x1da3", "0x1021", "0x120000")
        files |= {f"dev/accel/accel{number}": "", f"dev/accel/accel_controlD{number}": ""}
    answers = {
        "hl-smi": sample("habana/hl-smi.gaudi2e-8x.hl-1.23.0.txt").replace("1.23.0", release),
        "hl-smi -Q index,module_id -f csv": sample("habana/hl-smi.index-module_id.gaudi2e.csv.txt"),
        "hl-smi topo -c -N": sample("habana/hl-smi-topo-c-N.gaudi2.txt"),
    }
    origin = (
        "hl-smi, its module list and lspci of a Gaudi2E host, from the 1.23 manual; topo of a Gaudi2 host;"
        " made up: processors, memory, knobs, the image's packages"
    )
    return machine(answers, files | software("1.22.0.740"), origin)


def untuned() -> Tree:
    """A Gaudi2E host as it comes out of its box: nothing of the manual's first chapter was done."""
    return {
        **gaudi2e("1.20.0"),
        **software("1.20.0.543", "habana_media_loader"),
        "proc/sys/vm/nr_hugepages": "0\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "proc/sys/kernel/osrelease": "6.8.0-52-generic\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state0/name": "POLL\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state1/name": "C1\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state2/name": "C1E\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state3/name": "C6\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state3/disable": "0\n",
        "sys/kernel/iommu_groups/0/type": "DMA-FQ\n",
        "sys/module/intel_idle/parameters/max_cstate": "9\n",
        "origin": "habana-gaudi2e-8x, with nothing of the manual's first chapter done and an old driver; all made up\n",
    }


def gaudi3() -> Tree:
    """Eight OAM cards of 128 GiB, with a driver that is one minor release older than the tool."""
    buses = ("e9", "c1", "b7", "ad", "a3", "df", "d5", "cb")
    places = [Card(number, bus, number, int(number >= 4)) for number, bus in enumerate(buses)]
    files = cards("0x1060", places, "1.24.1-366eb9c", "hl-gaudi3-1.24.1-fw-65.2.0-sec-2")
    table = sample("habana/hl-smi.gaudi3-8x.hl-1.21.0.txt")
    table = table.replace("1.21.0", "1.24.1").replace("1.20.1", "1.24.1")
    origin = (
        "hl-smi of a Gaudi3 host, its versions raised to 1.24.1; made up: the driver's files, module numbers, NUMA"
        " nodes, processors, memory, knobs"
    )
    return machine({"hl-smi": table}, files, origin, variant="habana1.24-plugin0.26\n")


def trees() -> dict[str, Tree]:
    """Return every made host: name → path → text."""
    return {
        "habana-gaudi2-8x": gaudi2(),
        "habana-gaudi2e-8x": gaudi2e(),
        "habana-gaudi2e-untuned": untuned(),
        "habana-gaudi3-8x": gaudi3(),
    }
