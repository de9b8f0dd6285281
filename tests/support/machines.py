"""Machines to plan for: a kind of device and how many of them → facts, and the profile of the image that serves there.

Each kind is a recorded host of tests/hosts, read by its probe, then cut to the first N devices, as if its container had
got no more, or continued with more of them. A kind without a recording is the most similar host with another name,
architecture, memory and link. Used by decisions.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from entrypoints.core.records import Cpu, Device, Facts, Link, Node
from entrypoints.facts.derived import make_idle
from tests.support.hosts import expect

MIB = 1 << 20


class Kind(NamedTuple):
    """One kind of device. What is empty or None is as the host was recorded."""

    host: str
    """The recorded host in tests/hosts."""
    name: str = ""
    architecture: str = ""
    memory: int | None = None
    """MiB of one, as its vendor's tool prints it."""
    link: str | None = None
    """Between any two devices; empty for none."""
    target: str = ""
    """What is written after `--target`; empty for the row that the recorded host names."""
    ranks: int = 1
    """Devices of the runtime in one of these devices."""
    cores: int = 1
    """Ranks that a device holds, where these are what is handed over and counted."""
    source: str = ""
    """Of the memory and the link, where they are not recorded."""


KINDS: Mapping[str, Kind] = {
    # cuda
    "h100": Kind("cuda-h100-8x"),
    "h200": Kind("cuda-h100-8x", "NVIDIA H200", "9.0", 143771, source="nvidia-smi of an H200"),
    "h20": Kind("cuda-h100-8x", "NVIDIA H20", "9.0", 97871, source="nvidia-smi of an H20"),
    "gh200": Kind("cuda-gh200"),
    "b200": Kind("cuda-h100-8x", "NVIDIA B200", "10.0", 183359, target="b200", source="nvidia-smi of a B200"),
    "b300": Kind("cuda-h100-8x", "NVIDIA B300 SXM6 AC", "10.3", 275040, target="b200", source="nvidia-smi of a B300"),
    "gb200": Kind("cuda-gb200-4x"),
    "a100": Kind("cuda-h100-8x", "NVIDIA A100-SXM4-80GB", "8.0", 81920, "NV12", source="nvidia-smi of an A100 80GB"),
    "a100-40g": Kind("cuda-h100-8x", "NVIDIA A100-SXM4-40GB", "8.0", 40960, "NV12", source="nvidia-smi of an A100"),
    "l40s": Kind("cuda-rtx4090-8x", "NVIDIA L40S", "8.9", 46068, source="nvidia-smi of an L40S"),
    "l4": Kind("cuda-rtx4090-8x", "NVIDIA L4", "8.9", 23034, source="nvidia-smi of an L4"),
    "a10g": Kind("cuda-rtx4090-8x", "NVIDIA A10G", "8.6", 23028, source="nvidia-smi of an A10G"),
    "t4": Kind("cuda-rtx4090-8x", "Tesla T4", "7.5", 15360, source="nvidia-smi of a T4"),
    "v100-16g": Kind(
        "cuda-v100-8x", "Tesla V100-SXM2-16GB", "7.0", 16160, target="v100", source="nvidia-smi of a V100 16GB"
    ),
    "v100-32g": Kind("cuda-v100-8x", target="v100"),
    "rtx4090": Kind("cuda-rtx4090-8x"),
    "rtx5090": Kind("cuda-rtx4090-8x", "NVIDIA GeForce RTX 5090", "12.0", 32607, source="nvidia-smi of an RTX 5090"),
    "rtxpro6000": Kind(
        "cuda-rtx4090-8x", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", 97887,
        source="nvidia-smi of an RTX PRO 6000",
    ),
    "gb10": Kind("cuda-gb10"),
    # rocm
    "mi210": Kind(
        "rocm-mi300x-8x", "AMD Instinct MI210", "gfx90a", 65520, "PCIE", "mi200",
        source="64 GiB, as a die of an MI250X; PCIe cards (AMD's data sheet)",
    ),
    "mi250x": Kind("rocm-mi250x-4x"),
    "mi300x": Kind("rocm-mi300x-8x"),
    "mi308x": Kind("rocm-mi300x-8x", "AMD Instinct MI308X", source="192 GiB, as an MI300X (AMD's data sheet)"),
    "mi325x": Kind("rocm-mi300x-8x", "AMD Instinct MI325X", memory=262128, source="256 GiB (AMD's data sheet)"),
    "mi350x": Kind("rocm-mi355x-8x", "AMD Instinct MI350X", source="288 GB, as an MI355X (AMD's data sheet)"),
    "mi355x": Kind("rocm-mi355x-8x"),
    "rx7900xtx": Kind("rocm-rx7900xtx-2x"),
    "r9700": Kind(
        "rocm-rx7900xtx-2x", "AMD Radeon AI PRO R9700", "gfx1201", 32624, target="rocm",
        source="32 GiB (AMD's data sheet), less what the driver takes of an RX 7900 XTX",
    ),
    # xpu
    "b580": Kind("xpu-b580-1x"),
    "b60": Kind("xpu-arc-pro-b60-2x"),
    "b70": Kind(
        "xpu-arc-pro-b60-2x", "Intel Arc Pro B70", "bmg-g31", 32640,
        source="32 GiB (Intel's data sheet), less what the driver takes of a B60",
    ),
    "max1100": Kind("xpu-max1100-1x"),
    "max1550": Kind("xpu-max1550-2x"),
    # tpu
    "v4": Kind("tpu-v4-4x"),
    "v5e": Kind("tpu-v6e-8x", "TPU v5e", "v5e", source="the memory is that of the generation in accelerator.yaml"),
    "v5p": Kind("tpu-v5p-4x"),
    "v6e": Kind("tpu-v6e-8x"),
    "v7x": Kind(
        "tpu-v5p-4x", "TPU7x", "v7x", ranks=2,
        source="two devices a chip (tpu_info/device.py); the memory is that of the generation in accelerator.yaml",
    ),
    # ascend
    "910b": Kind("ascend-910b3-8x"),
    "910b4": Kind("ascend-910b3-8x", "910B4", memory=32768, source="npu-smi of a 910B4, tests/hosts/ascend-910b4-1x"),
    "a3": Kind("ascend-a3-8x2"),
    "310p": Kind("ascend-310p3"),
    # habana
    "gaudi2": Kind("habana-gaudi2-8x"),
    "gaudi2e": Kind("habana-gaudi2e-8x"),
    "gaudi3": Kind("habana-gaudi3-8x"),
    "gaudi3-pcie": Kind("habana-gaudi3-8x", "HL-338", source="128 GiB, as an HL-325L (Intel's data sheet)"),
    # enflame
    "s60": Kind("enflame-s60-2x"),
    # neuron: a device is a logical core
    "inf2": Kind("neuron-inf2.24xlarge", cores=2),
    "trn1": Kind("neuron-trn1.32xlarge", cores=2),
    "trn2": Kind("neuron-trn2n.48xlarge", cores=4),
    "trn3": Kind(
        "neuron-trn2n.48xlarge", "Trainium3", "trn3", 147456, cores=4, source="144 GiB (AWS's page of Trn3 instances)"
    ),
    # cpu: a device is a NUMA node
    "xeon": Kind(
        "cpu-xeon8380-2s", memory=524288, source="Xeon 6 and 5th generation: AMX, 512 GiB a socket (Intel's data sheet)"
    ),
}  # fmt: skip
"""Every kind by its name in tests/models/published."""

_AMX = ("amx_bf16", "amx_tile", "amx_int8", "avx512_bf16")


class Machine(NamedTuple):
    """What a server is planned with."""

    profile: dict[str, Any]
    facts: Facts


def accelerator(kind: str) -> str:
    return KINDS[kind].host.partition("-")[0]


@cache
def machine(kind: str, count: int, target: str = "") -> Machine:
    """Return a machine with `count` devices of a kind; of a CPU, with `count` NUMA nodes.

    `target` is another row than the kind's.
    """
    machine_kind = KINDS[kind]._replace(target=target or KINDS[kind].target)
    profile = _profile(machine_kind)
    facts = expect.read(machine_kind.host, profile)
    changed = (
        _processors(facts, machine_kind, count)
        if accelerator(kind) == "cpu"
        else _with_devices(make_idle(facts), machine_kind, count)
    )
    return Machine(profile, changed)


def _profile(kind: Kind) -> dict[str, Any]:
    if not kind.target:
        return expect.profile_of(kind.host)
    return expect.profile_in(kind.target)


# --- devices --------------------------------------------------------------------------------------------------------


def _with_devices(facts: Facts, kind: Kind, count: int) -> Facts:
    """Return a host's facts with `count` devices of a kind, all of them free."""
    recorded, total = facts.devices, -(-count // kind.cores) * kind.ranks
    devices = tuple(_device(kind, recorded, number) for number in range(total))
    if count % kind.cores:
        devices = (*devices[:-1], _part(devices[-1], count % kind.cores))
    if kind.link is not None:
        pairs = ((a, b) for a in range(total) for b in range(a + 1, total))
        links = tuple(Link(a, b, kind.link) for a, b in pairs) if kind.link else ()
    else:
        links = tuple(_continued(facts, total))
    return facts._replace(devices=devices, links=links)


def _device(kind: Kind, recorded: tuple[Device, ...], number: int) -> Device:
    """Return a device: a recorded one, or a further one like it, in a slot of its own."""
    chip = number // kind.ranks
    turn, place = divmod(chip, len(recorded))
    like, several = recorded[place], len({device.card for device in recorded})
    memory = like.memory_total if kind.memory is None else kind.memory * MIB
    card = like.card + turn * several if like.card is not None else (chip if kind.ranks > 1 else None)
    return like._replace(
        number=number,
        name=kind.name or like.name,
        architecture=kind.architecture or like.architecture,
        memory_total=memory,
        bus=like.bus if not turn else f"{turn:04x}{like.bus[4:]}",
        module_id=None if like.module_id is None else like.module_id + turn * len(recorded),
        card=card,
        path=f"{like.path.rstrip('0123456789')}{chip}" if like.path and turn else like.path,
        uuid=f"{like.uuid}-{turn}" if like.uuid and turn else like.uuid,
    )


def _part(device: Device, cores: int) -> Device:
    """Return a device of which a container has some of the cores only, with their share of the memory."""
    memory = device.memory_total and device.memory_total * cores // device.cores
    return device._replace(cores=cores, memory_total=memory)


def _continued(facts: Facts, total: int) -> Iterator[Link]:
    """Yield the recorded links, repeated for each further group of as many devices.

    Between groups each pair is linked as the first and last recorded device, if all recorded pairs are linked; else
    neighbours only.
    """
    first = min((device.number for device in facts.devices), default=0)
    size, recorded = len(facts.devices), {(link.first - first, link.second - first): link.kind for link in facts.links}
    if not recorded:
        return
    complete = len(recorded) == size * (size - 1) // 2
    between = recorded[0, size - 1] if complete else recorded[min(recorded)]
    for a in range(total):
        for b in range(a + 1, total):
            if a // size == b // size:
                kind = recorded.get((a % size, b % size))
            else:
                kind = between if complete or b == a + 1 else None
            if kind:
                yield Link(a, b, kind)


# --- processors -----------------------------------------------------------------------------------------------------


def _processors(facts: Facts, kind: Kind, count: int) -> Facts:
    """Return a host's facts with `count` NUMA nodes like the recorded ones, and a newer processor."""
    recorded = facts.nodes
    nodes, cpus = [], []
    offset = 1 + max(cpu.id for cpu in facts.cpus)
    for number in range(count):
        turn, place = divmod(number, len(recorded))
        node, memory = recorded[place], (kind.memory or 0) * MIB or recorded[place].memory_total
        nodes.append(Node(number, tuple(cpu + turn * offset for cpu in node.cpus), memory, int(memory * 0.96)))
        cpus += [_cpu(cpu, number, turn * offset) for cpu in facts.cpus if cpu.id in node.cpus]
    total = sum(node.memory_total for node in nodes)
    free = sum(node.memory_free for node in nodes)
    processor = facts.processor._replace(flags=tuple(sorted({*facts.processor.flags, *_AMX})))
    memory = facts.memory._replace(total=total, available=free)
    return facts._replace(nodes=tuple(nodes), cpus=tuple(cpus), memory=memory, processor=processor)


def _cpu(cpu: Cpu, node: int, offset: int) -> Cpu:
    siblings = tuple(number + offset for number in cpu.siblings)
    return Cpu(cpu.id + offset, cpu.core + offset, node, node, siblings)
