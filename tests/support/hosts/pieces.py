"""The files of a host, for makers of recorded hosts: processors, memory, limits, PCI devices, tools' answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20
Tree = dict[str, str]
"""Path below the host's root → text."""

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"

ICX_FLAGS = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr sse sse2 ss ht"
    " tm syscall nx pdpe1gb rdtscp lm constant_tsc avx f16c rdrand fma bmi1 avx2 bmi2 erms avx512f avx512dq avx512ifma"
    " avx512cd sha_ni avx512bw avx512vl avx512vbmi avx512_vbmi2 gfni vaes avx512_vnni avx512_bitalg"
)


# --- files of any host ----------------------------------------------------------------------------------------------


def ranges(numbers: Iterable[int]) -> str:
    """Format 0, 1, 2, 7 as the kernel does: `0-2,7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in parts)


def base(machine: str, cpus: int, memory: int, **status: str) -> Tree:
    """Make what every host has: status, limits, memory, mounts, no commands."""
    lines = {"Uid": "10001\t10001\t10001\t10001", "Gid": "0\t0\t0\t0", "CapEff": "0000000000000000", "Seccomp": "2"}
    lines |= {"Cpus_allowed_list": ranges(range(cpus)), "Mems_allowed_list": "0"} | status
    return {
        "machine": f"{machine}\n",
        "commands.json": "{}\n",
        "mounts.json": mounts(shm=64 * MIB),
        "proc/self/status": "".join(f"{key}:\t{value}\n" for key, value in lines.items()),
        "proc/self/cgroup": "0::/\n",
        "proc/self/limits": limits(),
        "proc/meminfo": meminfo(memory, memory * 9 // 10),
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/lo/operstate": "unknown\n",
        "sys/devices/system/cpu/online": f"{ranges(range(cpus))}\n",
    }


def meminfo(total: int, available: int, swap: int = 0) -> str:
    """Make /proc/meminfo."""
    sizes = {"MemTotal": total, "MemFree": available, "MemAvailable": available, "SwapTotal": swap, "SwapFree": swap}
    return "".join(f"{key + ':':16}{size // 1024:8} kB\n" for key, size in sizes.items())


def limits(nofile: str = "1048576", memlock: str = "8388608", *, nofile_hard: str = "") -> str:
    """Make the part of /proc/self/limits that is read."""
    rows = (
        ("Max processes", "unlimited", ""),
        ("Max open files", nofile, nofile_hard),
        ("Max locked memory", memlock, ""),
    )
    header = f"{'Limit':26}{'Soft Limit':21}{'Hard Limit':21}Units\n"
    return header + "".join(f"{name:26}{soft:21}{hard or soft:21}\n" for name, soft, hard in rows)


def mounts(shm: int) -> str:
    """Make mounts.json: a cache volume, shared memory of the given size, and /tmp."""
    sizes = {"cache": ("/cache", 500 * GIB, "ext4"), "shm": ("/dev/shm", shm, "tmpfs"), "tmp": ("/tmp", GIB, "overlay")}
    record = {
        role: {"path": path, "exists": True, "writable": True, "free": size, "total": size, "filesystem": kind}
        for role, (path, size, kind) in sizes.items()
    }
    return json.dumps(record, indent=2, sort_keys=True) + "\n"


def topology(cores: Iterable[tuple[int, ...]], socket_of: Mapping[int, int]) -> Tree:
    """Make the topology files that a probe reads: one a core, two a socket."""
    root = "sys/devices/system/cpu"
    tree: Tree = {}
    for threads in cores:
        tree[f"{root}/cpu{min(threads)}/topology/thread_siblings_list"] = ranges(threads) + "\n"
    for socket in sorted(set(socket_of.values())):
        members = [cpu for cpu, home in socket_of.items() if home == socket]
        tree[f"{root}/cpu{min(members)}/topology/package_cpus_list"] = ranges(members) + "\n"
        tree[f"{root}/cpu{min(members)}/topology/physical_package_id"] = f"{socket}\n"
    return tree


def nodes(members: Mapping[int, Iterable[int]], total: Mapping[int, int], free: Mapping[int, int]) -> Tree:
    """Make the NUMA nodes: id → CPUs, size and free memory."""
    root = "sys/devices/system/node"
    tree = {f"{root}/online": ranges(members) + "\n"}
    for node, cpus in members.items():
        sizes = {"MemTotal": total[node], "MemFree": free[node]}
        tree[f"{root}/node{node}/cpulist"] = ranges(cpus) + "\n"
        tree[f"{root}/node{node}/meminfo"] = "".join(
            f"Node {node} {key}: {size // 1024} kB\n" for key, size in sizes.items()
        )
    return tree


def cpuinfo_x86(vendor: str, model: str, flags: str) -> str:
    """Make the first block of /proc/cpuinfo on x86-64."""
    fields = {"processor": "0", "vendor_id": vendor, "model name": model, "flags": flags}
    return "".join(f"{key}\t: {value}\n" for key, value in fields.items())


def libraries(triplet: str, *, iomp: bool = False) -> Tree:
    """Make the image's preload libraries: that they are there is all that matters."""
    tree = {f"usr/lib/{triplet}/libtcmalloc_minimal.so.4": ""}
    return tree | ({"opt/venv/lib/libiomp5.so": ""} if iomp else {})


# --- devices --------------------------------------------------------------------------------------------------------


def sample(name: str) -> str:
    """Return what a vendor's tool really printed: tests/samples/<accelerator>/<file>, without its header."""
    text = (SAMPLES / name).read_text()
    _, mark, verbatim = text.partition("#---\n")
    return verbatim if mark else text


def commands(answers: Mapping[str, str]) -> Tree:
    """Make commands.json: command line → standard output, all with exit code 0."""
    found = {command: {"rc": 0, "stdout": text, "stderr": ""} for command, text in answers.items()}
    return {"commands.json": json.dumps(found, indent=2, sort_keys=True) + "\n"}


def pci(bus: str, vendor: str, device: str, kind: str, node: int = -1, cpus: str = "") -> Tree:
    """Make one PCI function, such as "0000:19:00.0", "0x1da3", "0x1020", "0x120000", 0, "0-39"."""
    root = f"sys/bus/pci/devices/{bus}"
    values = {"vendor": vendor, "device": device, "class": kind, "numa_node": str(node), "local_cpulist": cpus}
    return {f"{root}/{name}": f"{value}\n" for name, value in values.items()}


def server(cores: int, memory: int, *, model: str = "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz") -> Tree:
    """Make a two-socket x86-64 server without any device: so many cores a socket, two threads each, well tuned."""
    siblings = [(core, core + 2 * cores) for core in range(2 * cores)]
    members = {
        0: [*range(cores), *range(2 * cores, 3 * cores)],
        1: [*range(cores, 2 * cores), *range(3 * cores, 4 * cores)],
    }
    half = memory // 2
    return {
        **base("x86_64", 4 * cores, memory, Mems_allowed_list="0-1"),
        **topology(siblings, {cpu: node for node, cpus in members.items() for cpu in cpus}),
        **nodes(members, dict.fromkeys(members, half), dict.fromkeys(members, half * 9 // 10)),
        "mounts.json": mounts(shm=64 * GIB),
        "proc/cpuinfo": cpuinfo_x86("GenuineIntel", model, ICX_FLAGS),
        "proc/sys/kernel/numa_balancing": "0\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    }
