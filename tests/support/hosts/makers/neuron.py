"""Neuron hosts, made after what neuron-ls printed on such machines."""

from __future__ import annotations

import json
from collections.abc import Iterable

from entrypoints.facts.probes.neuron.neuron_ls import Listing, parse_table
from tests.support.hosts.pieces import GIB, ICX_FLAGS, Tree, base, commands, cpuinfo_x86, pci, ranges, sample, server

SYSFS = "sys/devices/virtual/neuron_device"
AMAZON, ACCELERATOR = "0x1d0f", "0x088000"


def _devices(listing: Listing, name: str, kind: str, physical: int, driver: str) -> Tree:
    """Make the device files, and what the driver tells of each."""
    tree: Tree = {"sys/module/neuron/version": f"{driver}\n"}
    for row in listing.rows:
        folder = f"{SYSFS}/neuron{row.number}"
        tree |= {
            f"dev/neuron{row.number}": "",
            f"{folder}/core_count": f"{physical}\n",
            f"{folder}/connected_devices": ", ".join(map(str, row.connected)) + "\n",
            f"{folder}/info/architecture/device_name": f"{name}\n",
            f"{folder}/stats/hardware/mem_ecc_uncorrected/total": "0\n",
            f"{folder}/stats/hardware/sram_ecc_uncorrected/total": "0\n",
        }
        tree |= _memory(folder, physical)
        tree |= pci(row.bus, AMAZON, kind, ACCELERATOR, -1 if row.node is None else row.node, ranges(row.cpus))
    return tree


def _memory(folder: str, cores: int) -> Tree:
    files = (f"{folder}/neuron_core{core}/stats/memory_usage/device_mem/present" for core in range(cores))
    return dict.fromkeys(files, "0\n")


def _json(listing: Listing) -> str:
    """Print a listing as `neuron-ls -j` does."""
    starts = [sum(row.cores for row in listing.rows[:place]) for place in range(len(listing.rows))]
    devices = [
        {
            "instance_type": listing.instance,
            "neuron_device": row.number,
            "bdf": row.bus,
            "cpu_affinity": ranges(row.cpus),
            "numa_node": str(-1 if row.node is None else row.node),
            "connected_to": list(row.connected) or None,
            "nc_count": row.cores,
            **({"logical_neuroncore_config": int(listing.grouping)} if listing.grouping else {}),
            "memory_size": row.memory,
            "neuroncore_ids": list(range(start, start + row.cores)),
            "neuron_processes": [],
        }
        for start, row in zip(starts, listing.rows, strict=True)
    ]
    return json.dumps(devices, indent=4) + "\n"


def trn2n() -> Tree:
    """Sixteen Trainium2 devices of four logical cores each, 64 ranks in all."""
    listing = parse_table(sample("neuron/neuron-ls.trn2n.txt"))
    return {
        **server(48, 2048 * GIB, model="Intel(R) Xeon(R) Platinum 8488C"),
        **_devices(listing, "Trainium2", "0x7364", 8, "2.30.2.0"),
        **commands({"neuron-ls -j": _json(listing)}),
        "origin": (
            "neuron-ls of a trn2n.48xlarge, its table turned into the JSON that the same tool prints with -j; made up:"
            " processor, memory, the driver's version and counters, PCI device id, knobs\n"
        ),
    }


def trn1() -> Tree:
    """Sixteen Trainium devices of two cores, by an older tool that prints no JSON."""
    text = sample("neuron/neuron-ls-t.trn1.32xlarge.txt")
    listing = parse_table(text)
    near = {0: range(32), 1: range(32, 64)}
    rows = tuple(row._replace(node=node, cpus=_both(near[node])) for row in listing.rows for node in [_node(row.bus)])
    return {
        **server(32, 512 * GIB, model="Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"),
        **_devices(listing._replace(rows=rows), "Trainium", "0x7164", 2, "2.28.4.0"),
        "commands.json": json.dumps(
            {
                "neuron-ls -j": {"rc": 1, "stdout": "", "stderr": "unknown shorthand flag: 'j' in -j\n"},
                "neuron-ls": {"rc": 0, "stdout": text, "stderr": ""},
            },
            indent=2,
            sort_keys=True,
        )
        + "\n",
        "sys/devices/virtual/dmi/id/product_name": "trn1.32xlarge\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "variant": "neuron2.29-vllm0.16\n",
        "origin": (
            "neuron-ls -t of a trn1.32xlarge in the vendor's documentation; made up: that -j is refused, NUMA nodes by"
            " bus as in the vendor's NUMA table, processor, memory, the driver's version and counters, knobs\n"
        ),
    }


def _both(cores: Iterable[int]) -> tuple[int, ...]:
    """Return both hardware threads of each core."""
    first = tuple(cores)
    return (*first, *(core + 64 for core in first))


def _node(bus: str) -> int:
    """Buses 10 and 20 are the first socket's."""
    return int(bus[5:7] in ("90", "a0"))


def inf2() -> Tree:
    """Six Inferentia2 devices in a row, the middle three on the other socket."""
    listing = parse_table(sample("neuron/neuron-ls.inf2.24xlarge.txt"))
    return {
        **server(24, 384 * GIB, model="AMD EPYC 7R13 Processor"),
        **_devices(listing, "Inferentia2", "0x7264", 2, "2.26.10.0"),
        **commands({"neuron-ls -j": _json(listing)}),
        "variant": "neuron2.29-vllm0.16\n",
        "origin": (
            "neuron-ls of an inf2.24xlarge of 2026-05-08, its table turned into JSON; made up: processor, memory, a"
            " driver too old for the image, counters, PCI device id, knobs\n"
        ),
    }


def trn1_old() -> Tree:
    """One Trainium device in a small instance, with the image of the old manual."""
    return {
        **base("x86_64", 8, 32 * GIB),
        **_devices(parse_table(sample("neuron/neuron-ls.trn1.2xlarge.2023.txt")), "Trainium", "0x7164", 2, "2.18.12.0"),
        **commands({"neuron-ls -j": sample("neuron/neuron-ls-j.trn1.2xlarge.txt")}),
        "proc/cpuinfo": cpuinfo_x86("GenuineIntel", "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", ICX_FLAGS),
        "sys/devices/virtual/dmi/id/product_name": "trn1.2xlarge\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        "variant": "neuron2.20-vllm0.6\n",
        "origin": "neuron-ls -j of a trn1.2xlarge; made up: processor, memory, the driver's version and counters\n",
    }


def pod() -> Tree:
    """One of sixteen Trainium2 devices in a pod, which a server holds already."""
    text = sample("neuron/neuron-ls-j.trn2.48xlarge-pod.txt")
    return {
        **server(48, 2048 * GIB, model="Intel(R) Xeon(R) Platinum 8488C"),
        **_devices(parse_table(sample("neuron/neuron-ls.trn2.48xlarge-pod.txt")), "Trainium2", "0x7364", 8, "2.30.2.0"),
        **commands({"neuron-ls -j": text}),
        "origin": (
            "neuron-ls -j in a pod of a trn2.48xlarge, of 2026-10-10; made up: processor, memory, the driver's version"
            " and counters, PCI device id, knobs\n"
        ),
    }


def trees() -> dict[str, Tree]:
    """Return every Neuron host."""
    return {
        "neuron-inf2.24xlarge": inf2(),
        "neuron-trn1.2xlarge": trn1_old(),
        "neuron-trn1.32xlarge": trn1(),
        "neuron-trn2-pod-busy": pod(),
        "neuron-trn2n.48xlarge": trn2n(),
    }
