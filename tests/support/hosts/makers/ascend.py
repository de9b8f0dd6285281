"""Ascend hosts, made after what npu-smi printed on such machines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tests.support.hosts.pieces import GIB, Tree, base, commands, mounts, nodes, pci, ranges, sample, topology

_FLAGS = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma dcpop asimddp asimdfhm"
)
_TOOLKIT = "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info"


def kunpeng(cores: int, each: int, memory: int, *, threads: int = 1) -> Tree:
    """A Kunpeng 920 server: so many logical CPUs, `each` on a NUMA node, four sockets, tuned as the vendor says."""
    count = cores // each
    siblings = [tuple(range(core, core + threads)) for core in range(0, cores, threads)]
    members = {node: list(range(node * each, node * each + each)) for node in range(count)}
    fields = {
        "processor": "0",
        "BogoMIPS": "200.00",
        "Features": _FLAGS,
        "CPU implementer": "0x48",
        "CPU part": "0xd01",
    }
    size = memory // count
    return {
        **base("aarch64", cores, memory, Mems_allowed_list=ranges(members)),
        **topology(siblings, {cpu: cpu // (cores // 4) for cpu in range(cores)}),
        **nodes(members, dict.fromkeys(members, size), dict.fromkeys(members, size * 9 // 10)),
        "mounts.json": mounts(shm=16 * GIB),
        "proc/cpuinfo": "".join(f"{key}\t: {value}\n" for key, value in fields.items()),
        "proc/sys/kernel/numa_balancing": "0\n",
        "proc/sys/kernel/sched_migration_cost_ns": "50000\n",
        "proc/sys/vm/swappiness": "0\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    }


def devices(numbers: Iterable[int]) -> Tree:
    """The device files that a container is given."""
    names = (*(f"davinci{number}" for number in numbers), "davinci_manager", "devmm_svm", "hisi_hdc")
    return {f"dev/{name}": "" for name in names}


def driver(version: str, toolkit: str) -> Tree:
    """The files of the driver, mounted, and of CANN, in the image."""
    return {
        "etc/ascend_install.info": (
            "UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Path_Param=/usr/local/Ascend\n"
        ),
        "usr/local/Ascend/driver/version.info": f"Version={version}\n",
        "usr/local/Ascend/driver/lib64/libdrvdsmi_host.so": "",
        "usr/local/bin/npu-smi": "",
        "usr/local/dcmi/libdcmi.so": "",
        _TOOLKIT: f"package_name=Ascend-cann-toolkit\nversion={toolkit}\narch=aarch64\nos=linux\n",
    }


def functions(device: str, places: Mapping[str, tuple[int, str]]) -> Tree:
    """PCI functions: bus → NUMA node and CPUs."""
    tree: Tree = {}
    for bus, (node, cpus) in places.items():
        tree |= pci(bus.lower(), "0x19e5", device, "0x120000", node, cpus)
    return tree


def mapping(rows: Iterable[tuple[int, int, int]], name: str) -> str:
    """`npu-smi info -m` in four columns: card, chip, logic id; each card's last chip is its management processor."""
    header = ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name")
    cells: list[tuple[object, ...]] = [header, *((npu, chip, logic, name) for npu, chip, logic in rows)]
    return "".join("\t" + "".join(f"{cell!s:31}" for cell in row) + "\n" for row in cells)


def buses(table: str) -> list[str]:
    """Return the PCI addresses of a table, in its order."""
    return re.findall(r"[0-9A-F]{4}:[0-9A-F]{2}:[0-9A-F]{2}\.\d", table)


def a2() -> Tree:
    """Atlas 800T A2: eight 910B3, every second NUMA node has two."""
    table, topo = sample("ascend/npu-smi-info.910b3-8x.txt"), sample("ascend/npu-smi-topo.910b3-8x.txt")
    homes = (6, 6, 4, 4, 0, 0, 2, 2)
    places = {bus: (node, f"{24 * node}-{24 * node + 23}") for bus, node in zip(buses(table), homes, strict=True)}
    answers = {
        "npu-smi info": table,
        "npu-smi info -m": mapping(((npu, 0, npu) for npu in range(8)), "Ascend 910B3"),
        "npu-smi info -t topo": topo,
        "npu-smi info -t board -i 0": f"        {'NPU ID':31}: 0\n        {'Firmware Version':31}: 7.1.0.7.220\n",
    }
    return {
        **kunpeng(192, 24, 1536 * GIB),
        **devices(range(8)),
        **driver("24.1.rc1.b030", "9.1.0"),
        **functions("0xd802", places),
        **commands(answers),
        "origin": (
            "npu-smi info and -t topo of a machine with eight 910B3; made up: processor, memory, knobs, firmware, the"
            " rows of -m after another 910B3 machine's, PCI after the topology; its driver is older than CANN 9.1\n"
        ),
    }


def one() -> Tree:
    """A container that was given one of eight 910B4, the sixth."""
    table = sample("ascend/npu-smi-info.910b4-1x.txt")
    answers = {"npu-smi info": table, "npu-smi info -m": mapping([(5, 0, 0)], "Ascend 910B4")}
    return {
        **kunpeng(192, 24, 768 * GIB),
        **devices([5]),
        **driver("25.5.2", "9.1.0"),
        **functions("0xd802", {buses(table)[0]: (2, "48-71")}),
        **commands(answers),
        "origin": (
            "npu-smi info of a container with one 910B4; made up: processor, memory, knobs, its NUMA node, -m after"
            " another machine's, no answer for -t topo and -t board\n"
        ),
    }


def a3_table() -> str:
    """The table of sixteen dies, idle: an A3 that serves nothing shows 3419 and 2874 MB used."""
    rule = f"+{'-' * 27}+{'-' * 15}+{'-' * 52}+\n"
    table, _, _ = sample("ascend/npu-smi-info.a3-8x2.txt").partition(f"{rule}| NPU     Chip")
    used = iter((3419, 2874) * 8)
    table = re.sub(r"\d+/ 65536", lambda _: f"{next(used)} / 65536", table)
    idle = "".join(f"| No running processes found in NPU {npu:<61}|\n" for npu in range(8))
    header = "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
    return f"{table}{rule}{header}{rule}{idle}{rule}"


def a3_topo() -> str:
    """Links of sixteen dies: SIO within a card, HCCS_SW between cards."""
    names = [f"Phy-ID{number}" for number in range(16)]
    rows = (
        (names[own], *("X" if own == other else "SIO" if own // 2 == other // 2 else "HCCS_SW" for other in range(16)))
        for own in range(16)
    )
    lines = ((" " * 10 + "".join(f"{name:11}" for name in names)), *("".join(f"{c:11}" for c in row) for row in rows))
    return "\n".join(lines) + "\n"


def a3_mapping() -> str:
    header = ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name")
    rows: list[tuple[object, ...]] = [header]
    for npu in range(8):
        rows += [(npu, chip, 2 * npu + chip, 2 * npu + chip, "Ascend910") for chip in (0, 1)]
        rows.append((npu, 2, "-", "-", "Mcu"))
    return "".join("    " + "".join(f"{cell!s:31}" for cell in row).rstrip() + "\n" for row in rows)


def a3(variant: str, *, version: str, toolkit: str) -> Tree:
    """Atlas A3: eight cards of two dies; PCI tells each die's NUMA node."""
    table = a3_table()
    places = {bus: (node, f"{48 * node}-{48 * node + 47}") for bus, node in zip(buses(table), _PAIRS, strict=True)}
    answers = {"npu-smi info": table, "npu-smi info -m": a3_mapping(), "npu-smi info -t topo": a3_topo()}
    return {
        **kunpeng(384, 48, 1536 * GIB, threads=2),
        **devices(range(16)),
        **driver(version, toolkit),
        **functions("0xd803", places),
        **commands(answers),
        "variant": f"{variant}\n",
        "origin": (
            "lscpu and npu-smi info of an A3 that served (vllm-ascend issue 3002), with the usage of an idle one; -m"
            " after another A3's, -t topo after four dies' matrix; made up: NUMA nodes of the dies, memory and knobs\n"
        ),
    }


_PAIRS = (7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0)


def cloudmatrix() -> Tree:
    """A host of CloudMatrix384, started as omni-infer's guide says: its interfaces, and HCCL's addresses."""
    return {
        **a3("omniinfer-2025.06", version="24.1.rc3.7", toolkit="8.1.RC1"),
        "etc/hccn.conf": "".join(f"address_{chip}\n" for chip in range(16)),
        "sys/class/net/enp23s0f3/operstate": "up\n",
        "sys/class/net/enp23s0f3/device/vendor": "0x19e5\n",
        "sys/class/net/docker0/operstate": "up\n",
        "sys/class/net/lo/operstate": "unknown\n",
        "origin": (
            "the A3 of ascend-a3-8x2, with the interface that omni-infer's guide names; made up: driver and toolkit"
            " version, both of 2025, that every chip has an address\n"
        ),
    }


def duo() -> Tree:
    """One Atlas 300I Duo: two chips of one card on one PCI address, their memory unlike."""
    table = sample("ascend/npu-smi-info.310p3-2chips.txt")
    answers = {"npu-smi info": table, "npu-smi info -m": mapping([(2, 0, 0), (2, 1, 1)], "Ascend 310P3")}
    return {
        **kunpeng(128, 32, 512 * GIB),
        **devices((0, 1)),
        **driver("25.2.0", "9.1.0"),
        **functions("0xd500", {buses(table)[0]: (2, "64-95")}),
        **commands(answers),
        "variant": "ascend9.1-310p-vllm0.23\n",
        "origin": (
            "npu-smi info of a 300I Duo, NUMA node and CPUs of another one (gpustack); made up: processor, memory,"
            " knobs, -m after a 910B3 machine's, no answer for -t topo\n"
        ),
    }


def trees() -> dict[str, Tree]:
    """Return every made host: name → path → text."""
    return {
        "ascend-910b3-8x": a2(),
        "ascend-910b4-1x": one(),
        "ascend-a3-8x2": a3("ascend9.1-a3-vllm0.23", version="25.2.0", toolkit="9.1.0"),
        "ascend-cloudmatrix384": cloudmatrix(),
        "ascend-310p3": duo(),
    }
