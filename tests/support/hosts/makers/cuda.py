"""NVIDIA hosts that nobody's machine was at hand for, after what nvidia-smi printed elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.hosts.pieces import GIB, Tree, base, commands, nodes, pci, sample, server, topology

_OLD = (
    "index,name,uuid,pci.bus_id,memory.total,memory.used,driver_version,persistence_mode,compute_mode,"
    "ecc.errors.uncorrected.volatile.total"
)
FULL = f"nvidia-smi --query-gpu={_OLD},compute_cap,mig.mode.current --format=csv"
LEAST = "nvidia-smi --query-gpu=index,name,memory.total --format=csv"
HEADER = (
    "index, name, uuid, pci.bus_id, memory.total [MiB], memory.used [MiB], driver_version, persistence_mode,"
    " compute_mode, ecc.errors.uncorrected.volatile.total, compute_cap, mig.mode.current\n"
)
REFUSED = 'Field "compute_cap" is not a valid field to query.\n'
H100_BUSES = ("0e", "15", "1b", "21", "8d", "94", "9a", "a0")


def query(name: str, total: int, capability: str, driver: str, buses: Iterable[str], *, ecc: str = "0") -> str:
    """Make the CSV of GPUs that are alike and free."""
    rows = (
        f"{number}, {name}, GPU-00000000-0000-0000-0000-00000000000{number}, 00000000:{bus.upper()}:00.0, {total} MiB,"
        f" 4 MiB, {driver}, Enabled, Default, {ecc}, {capability}, {'Disabled' if ecc == '0' else '[N/A]'}\n"
        for number, bus in enumerate(buses)
    )
    return HEADER + "".join(rows)


def driver(version: str, buses: Iterable[str], device: str, cpus: Iterable[tuple[int, str]]) -> Tree:
    """Make the driver's files: device nodes, its version, PCI functions with their node and CPUs."""
    tree: Tree = {
        "dev/nvidiactl": "",
        "dev/nvidia-uvm": "",
        "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release\n",
        "proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
    }
    for number, (bus, (node, near)) in enumerate(zip(buses, cpus, strict=True)):
        tree |= pci(f"0000:{bus}:00.0", "0x10de", device, "0x030200", node, near)
        tree[f"dev/nvidia{number}"] = ""
    return tree


def _halves(cores: int, count: int) -> list[tuple[int, str]]:
    """Return node and CPUs of so many GPUs, the first half beside the first processor."""
    first, second = f"0-{cores - 1},{2 * cores}-{3 * cores - 1}", f"{cores}-{2 * cores - 1},{3 * cores}-{4 * cores - 1}"
    return [(0, first)] * (count // 2) + [(1, second)] * (count // 2)


def h100_8x() -> Tree:
    """Eight H100 behind NVSwitch."""
    answers = {
        FULL: query("NVIDIA H100 80GB HBM3", 81559, "9.0", "580.95.05", H100_BUSES),
        "nvidia-smi topo -m": sample("cuda/nvidia-smi-topo-m.h100-8x.txt"),
    }
    return {
        **server(48, 2048 * GIB, model="Intel(R) Xeon(R) Platinum 8468"),
        **driver("580.95.05", H100_BUSES, "0x2330", _halves(48, 8)),
        **commands(answers),
        "origin": "nvidia-smi topo -m of an 8x H100 node; made up: the CSV, the host\n",
    }


def h100_busy() -> Tree:
    """One H100 in a pod, which another vLLM holds."""
    return {
        **server(52, 1024 * GIB, model="Intel(R) Xeon(R) Platinum 8481C"),
        **driver("580.173.02", ("8d",), "0x2330", [(1, "52-103,156-207")]),
        **commands({"nvidia-smi": sample("cuda/nvidia-smi.h100-1x.r580.txt")}),
        "origin": "nvidia-smi of a pod with one H100 and a running vLLM; made up: no CSV, the host, its tuning\n",
    }


def h100_old_driver() -> Tree:
    """One H100, free, with a driver of CUDA 12.2."""
    return {
        **server(52, 1024 * GIB, model="Intel(R) Xeon(R) Platinum 8481C"),
        **driver("535.104.12", ("53",), "0x2330", [(0, "0-51,104-155")]),
        **commands(
            {
                FULL: query("NVIDIA H100 80GB HBM3", 81559, "9.0", "535.104.12", ("53",)),
                "nvidia-smi": sample("cuda/nvidia-smi.h100.r535.txt"),
            }
        ),
        "origin": "nvidia-smi of a machine with one H100 and driver 535; made up: the CSV, the host, its tuning\n",
    }


def rtx4090_8x() -> Tree:
    """Eight RTX 4090 on PCIe, four beside each processor."""
    buses = ("16", "38", "49", "5a", "98", "b8", "c8", "d8")
    head = "\t" + "\t".join(f"GPU{number}" for number in range(8)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    halves = _halves(32, 8)
    rows = (
        f"GPU{one}\t"
        + "\t".join(" X " if one == other else "NODE" if halves[one] == halves[other] else "SYS" for other in range(8))
        + f"\t{halves[one][1]}\t{halves[one][0]}\t\tN/A\n"
        for one in range(8)
    )
    answers = {
        FULL: query("NVIDIA GeForce RTX 4090", 24564, "8.9", "580.95.05", buses, ecc="[N/A]"),
        LEAST: sample("cuda/nvidia-smi-query.rtx4090-8x.csv.txt"),
        "nvidia-smi topo -m": head + "".join(rows),
    }
    return {
        **server(32, 512 * GIB, model="Intel(R) Xeon(R) Gold 6430"),
        **driver("580.95.05", buses, "0x2684", halves),
        **commands(answers),
        "origin": "index, name and memory of an 8x RTX 4090 machine; made up: the rest\n",
    }


def v100_8x() -> Tree:
    """Eight V100 in a hybrid mesh, where not every pair has NVLink; a driver too old for CUDA 12."""
    buses = ("15", "16", "3a", "3b", "89", "8a", "b2", "b3")
    old = query("Tesla V100-SXM2-32GB", 32510, "7.0", "470.57.02", buses)
    columns = "\n".join(", ".join(line.split(", ")[:-2]) for line in old.splitlines()) + "\n"
    tree = commands({f"nvidia-smi --query-gpu={_OLD} --format=csv": columns})
    tree |= commands(
        {
            f"nvidia-smi --query-gpu={_OLD} --format=csv": columns,
            "nvidia-smi topo -m": sample("cuda/nvidia-smi-topo-m.v100-8x.r470.txt"),
        }
    )
    return {
        **server(24, 384 * GIB, model="Intel(R) Xeon(R) Gold 6271C CPU @ 2.60GHz"),
        **driver("470.57.02", buses, "0x1db5", _halves(24, 8)),
        **tree,
        "variant": "cuda11.8-vllm0.6\n",
        "origin": "nvidia-smi topo -m of an 8x V100 machine with driver 470.57.02; made up: the CSV, tuning\n",
    }


def a100_mig() -> Tree:
    """One instance of an A100, as a cluster gives it to a job."""
    answers = {
        "nvidia-smi": sample("cuda/nvidia-smi.a100-mig.r550.txt"),
        FULL: query("NVIDIA A100 80GB PCIe", 81920, "8.0", "550.163.01", ("e8",)).replace("Disabled", "Enabled"),
        "nvidia-smi -L": "GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000001)\n",
    }
    return {
        **server(32, 512 * GIB, model="AMD EPYC 7543 32-Core Processor"),
        **driver("550.163.01", ("e8",), "0x20b5", [(1, "32-63,96-127")]),
        **commands(answers),
        "variant": "cuda12.9-vllm0.18\n",
        "origin": "nvidia-smi of a cluster's job with one MIG instance; made up: CSV, list, host\n",
    }


def gb10() -> Tree:
    """A DGX Spark: GPU and processor share their memory, for which the tool has no figure."""
    cores = [(core,) for core in range(20)]
    fields = {"processor": "0", "Features": "fp asimd aes pmull sha2 crc32 atomics fphp asimdhp sve i8mm bf16"}
    fields |= {"CPU implementer": "0x41", "CPU architecture": "8", "CPU part": "0xd85"}
    table = sample("cuda/nvidia-smi.gb10.r580.txt")
    row = query("NVIDIA GB10", 0, "12.1", "580.95.05", ("01",), ecc="[N/A]").replace("00000000:01", "0000000F:01")
    tree = driver("580.95.05", ("01",), "0x2e12", [(-1, "0-19")])
    functions = {path.replace("0000:01:00.0", "000f:01:00.0"): text for path, text in tree.items()}
    return {
        **base("aarch64", 20, 120 * GIB),
        **topology(cores, dict.fromkeys(range(20), 0)),
        **nodes({0: range(20)}, {0: 120 * GIB}, {0: 112 * GIB}),
        **functions,
        **commands({"nvidia-smi": table, FULL: row.replace("0 MiB, 4 MiB", "[N/A], [N/A]")}),
        "proc/cpuinfo": "".join(f"{key}\t: {value}\n" for key, value in fields.items()),
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        "origin": "nvidia-smi of a DGX Spark; made up: the CSV after public notes, part number, memory, tuning\n",
    }


def trees() -> dict[str, Tree]:
    """Return the hosts that have no machine behind them, by name."""
    return {
        "cuda-a100-mig": a100_mig(),
        "cuda-gb10": gb10(),
        "cuda-h100-1x-busy": h100_busy(),
        "cuda-h100-1x-r535": h100_old_driver(),
        "cuda-h100-8x": h100_8x(),
        "cuda-rtx4090-8x": rtx4090_8x(),
        "cuda-v100-8x": v100_8x(),
    }
