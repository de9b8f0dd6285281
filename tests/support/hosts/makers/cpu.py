"""CPU hosts that nobody's machine was at hand for."""

from __future__ import annotations

import json

from tests.support.hosts.knobs import KNOBS, tuned, wrong
from tests.support.hosts.pieces import (
    GIB,
    ICX_FLAGS,
    MIB,
    Tree,
    base,
    cpuinfo_x86,
    libraries,
    limits,
    mounts,
    nodes,
    topology,
)

KUNPENG_FLAGS = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4"
    " asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4"
    " flagm2 frint svei8mm svebf16 i8mm bf16 dgh rng ecv"
)


def xeon() -> Tree:
    """Two sockets with hyper-threading, as a 160-thread Xeon numbers its CPUs; nothing limits the container."""
    cores = [(core, core + 80) for core in range(80)]
    members = {0: [*range(40), *range(80, 120)], 1: [*range(40, 80), *range(120, 160)]}
    each = 256 * GIB
    return {
        **base("x86_64", 160, 2 * each, Mems_allowed_list="0-1", CapEff="0000000000800000", Seccomp="0"),
        **topology(cores, {cpu: node for node, cpus in members.items() for cpu in cpus}),
        **nodes(members, dict.fromkeys(members, each), {0: 230 * GIB, 1: 244 * GIB}),
        **libraries("x86_64-linux-gnu", iomp=True),
        "mounts.json": mounts(shm=4 * GIB),
        "proc/cpuinfo": cpuinfo_x86("GenuineIntel", "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", ICX_FLAGS),
        "proc/sys/kernel/numa_balancing": "1\n",
        "proc/sys/vm/swappiness": "60\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
        "sys/devices/system/cpu/smt/control": "on\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "origin": "lscpu of a Xeon 8380 host; made up: NUMA numbering, memory, knobs, an unlimited cgroup v2\n",
    }


def untuned() -> Tree:
    """The same two sockets with every setting of the host wrong, and a container that was given too little."""
    tree = tuned(xeon())
    for fact in KNOBS:
        tree |= {path: text for path, text in wrong(tree, fact).items() if text is not None}
    small = json.loads(mounts(shm=64 * MIB))
    small["cache"] |= {"free": 2 * GIB, "writable": True}
    small["tmp"] |= {"writable": False}
    return {
        **{path: text for path, text in tree.items() if not path.startswith(("etc/", "sys/class/", "opt/", "usr/"))},
        "mounts.json": json.dumps(small, indent=2, sort_keys=True) + "\n",
        "proc/self/limits": limits(nofile="1024", nofile_hard="2048", memlock="65536"),
        "proc/self/status": tree["proc/self/status"]
        .replace("0000000000800000", "0" * 16)
        .replace("Seccomp:\t0", "Seccomp:\t2"),
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/lo/operstate": "unknown\n",
        "sys/fs/cgroup/pids.max": "1024\n",
        "origin": "cpu-xeon8380-2s; made up: every setting that a check looks at, wrong\n",
    }


def kunpeng() -> Tree:
    """Four Arm sockets, two NUMA nodes each, two threads a core."""
    cores = [(core, core + 1) for core in range(0, 384, 2)]
    members = {node: list(range(node * 48, node * 48 + 48)) for node in range(8)}
    each = 128 * GIB
    fields = {"processor": "0", "BogoMIPS": "200.00", "Features": KUNPENG_FLAGS, "CPU implementer": "0x48"}
    fields |= {"CPU architecture": "8", "CPU variant": "0x0", "CPU part": "0xd06"}
    return {
        **base("aarch64", 384, 8 * each, Mems_allowed_list="0-7", CapEff="0000000000800000"),
        **topology(cores, {cpu: cpu // 96 for cpu in range(384)}),
        **nodes(members, dict.fromkeys(members, each), dict.fromkeys(members, 120 * GIB)),
        **libraries("aarch64-linux-gnu"),
        "mounts.json": mounts(shm=16 * GIB),
        "proc/cpuinfo": "".join(f"{key}\t: {value}\n" for key, value in fields.items()),
        "proc/sys/kernel/numa_balancing": "0\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        "origin": "lscpu of a Kunpeng 920 host; made up: sibling numbering, part number, memory, knobs\n",
    }


def node_without_cpus() -> Tree:
    """Three nodes with a gap in their numbers; the last has memory and no CPUs."""
    members: dict[int, list[int]] = {0: list(range(20)), 1: list(range(20, 40)), 3: []}
    total = {0: 3958 * MIB, 1: 4027 * MIB, 3: 3994 * MIB}
    free = {0: 3708 * MIB, 1: 3871 * MIB, 3: 3971 * MIB}
    return {
        **base("x86_64", 40, sum(total.values()), Mems_allowed_list="0-1,3"),
        **topology([(cpu,) for cpu in range(40)], {cpu: cpu // 20 for cpu in range(40)}),
        **nodes(members, total, free),
        **libraries("x86_64-linux-gnu", iomp=True),
        "proc/cpuinfo": cpuinfo_x86("GenuineIntel", "Intel Xeon", "fpu sse2 avx avx2"),
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory\n",
        "origin": "numactl --hardware of a host with a CPU-less node; made up: processor, one thread a core\n",
    }


def s390x() -> Tree:
    """A z15 partition: four cores of two threads, a kernel without NUMA."""
    cpuinfo = (
        "vendor_id       : IBM/S390\n# processors    : 8\nbogomips per cpu: 3241.00\nmax thread id   : 1\n"
        "features\t: esan3 zarch stfle msa ldisp eimm dfp edat etf3eh highgprs te vx vxd vxe gs vxe2 vxp sort dflt\n"
        "processor 0: version = FF,  identification = 0133E8,  machine = 8561\n"
    )
    return {
        **base("s390x", 8, 64 * GIB),
        **topology([(cpu, cpu + 1) for cpu in range(0, 8, 2)], dict.fromkeys(range(8), 0)),
        **libraries("s390x-linux-gnu"),
        "proc/cpuinfo": cpuinfo,
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory\n",
        "origin": "made up after arch/s390/kernel/processor.c: a z15 with four cores\n",
    }


def power9() -> Tree:
    """A POWER9 of eight cores, four threads each, on nodes 0 and 8."""
    cores = [tuple(range(core, core + 4)) for core in range(0, 32, 4)]
    members = {0: list(range(16)), 8: list(range(16, 32))}
    cpuinfo = (
        "processor\t: 0\ncpu\t\t: POWER9 (architected), altivec supported\nclock\t\t: 2500.000000MHz\n\n"
        "timebase\t: 512000000\nplatform\t: pSeries\nmodel\t\t: IBM,9009-42A\nMMU\t\t: Radix\n"
    )
    return {
        **base("ppc64le", 32, 128 * GIB, Mems_allowed_list="0,8", Seccomp="0"),
        **topology(cores, {cpu: 8 * (cpu // 16) for cpu in range(32)}),
        **nodes(members, dict.fromkeys(members, 64 * GIB), dict.fromkeys(members, 60 * GIB)),
        **libraries("powerpc64le-linux-gnu"),
        "mounts.json": mounts(shm=4 * GIB),
        "proc/cpuinfo": cpuinfo,
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory\n",
        "origin": "made up after arch/powerpc/kernel/setup-common.c: two chips of a POWER9\n",
    }


def small(memory: int) -> Tree:
    """Eight cores of a larger machine's virtual half, before any cgroup."""
    return {
        **base("x86_64", 8, memory),
        **topology([(cpu,) for cpu in range(8)], dict.fromkeys(range(8), 0)),
        **nodes({0: range(8)}, {0: memory}, {0: memory * 9 // 10}),
        **libraries("x86_64-linux-gnu", iomp=True),
        "proc/cpuinfo": cpuinfo_x86("AuthenticAMD", "AMD EPYC 9254", ICX_FLAGS + " avx512_bf16"),
    }


def cgroup2(limit: int, quota: str) -> Tree:
    """A container with limits of its own below a pod without any, cgroup v2."""
    return {
        **small(64 * GIB),
        "proc/self/cgroup": "0::/pod/server\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory pids\n",
        "sys/fs/cgroup/pod/memory.max": "max\n",
        "sys/fs/cgroup/pod/memory.current": f"{200 * MIB}\n",
        "sys/fs/cgroup/pod/server/memory.max": f"{limit}\n",
        "sys/fs/cgroup/pod/server/memory.current": f"{50 * MIB}\n",
        "sys/fs/cgroup/pod/server/cpu.max": f"{quota}\n",
        "sys/fs/cgroup/pod/server/pids.max": "4096\n",
        "origin": "made up after the kernel's cgroup-v2.rst\n",
    }


def cgroup1() -> Tree:
    """A container below a tighter parent that it cannot see but in memory.stat, cgroup v1, cpu and cpuacct together."""
    memory, cpu = "sys/fs/cgroup/memory/docker/abc", "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    return {
        **small(64 * GIB),
        "mounts.json": mounts(shm=GIB),
        "proc/self/cgroup": "5:pids:/docker/abc\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{memory}/memory.limit_in_bytes": f"{32 * GIB}\n",
        f"{memory}/memory.usage_in_bytes": f"{100 * MIB}\n",
        f"{memory}/memory.stat": f"cache 0\nhierarchical_memory_limit {24 * GIB}\ntotal_cache 0\n",
        f"{cpu}/cpu.cfs_quota_us": "400000\n",
        f"{cpu}/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/pids/docker/abc/pids.max": "max\n",
        "origin": "made up after the kernel's cgroup-v1 documentation\n",
    }


def trees() -> dict[str, Tree]:
    """Return every made host: name → path → text."""
    return {
        "cpu-untuned-2s": untuned(),
        "cpu-xeon8380-2s": xeon(),
        "cpu-kunpeng920-4s": kunpeng(),
        "cpu-node-without-cpus": node_without_cpus(),
        "cpu-z15": s390x(),
        "cpu-power9": power9(),
        "cpu-cgroup2-limited": cgroup2(8 * GIB, "250000 100000"),
        "cpu-cgroup2-tiny": cgroup2(2 * GIB, "max 100000"),
        "cpu-cgroup1": cgroup1(),
    }
