"""AMD GPUs: reads /sys (the kernel's compute driver), then amd-smi, rocm-smi or rocminfo. IO.

A device is what HIP counts: a GPU, a die of an MI250, or a partition of a GPU in DPX, QPX or CPX mode. Devices have
HIP's numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os.path import basename

from entrypoints.core.parse import parse_fields
from entrypoints.core.records import Device, Link, ProbeResult
from entrypoints.core.units import MIB
from entrypoints.facts.derived import describe_missing_choice
from entrypoints.facts.probes.common import pci
from entrypoints.facts.probes.common.printed import number_of, word_of
from entrypoints.facts.probes.common.steps import check_device_file, drop_empty_values, first_answer
from entrypoints.facts.probes.rocm import kfd
from entrypoints.facts.probes.rocm.amdsmi import (
    AmdSmiCard,
    parse_amd_smi,
    parse_amd_topology,
    parse_rocm_smi,
    parse_rocminfo,
)
from entrypoints.facts.probes.rocm.kfd import GpuNode, Wire
from entrypoints.host.host import Host, Run

KFD = "/dev/kfd"
_WSL = "/dev/dxg"
_ROCR_VISIBLE = "ROCR_VISIBLE_DEVICES"
_POOLS = ("vram", "gtt")
"""The memory that the firmware carves out for a GPU, and the memory of the host that the kernel may map into it."""
_PCI = "/sys/bus/pci/devices"

NAMES = {
    "0x7408": "AMD Instinct MI250X",
    "0x740c": "AMD Instinct MI250X/MI250",
    "0x740f": "AMD Instinct MI210",
    "0x74a0": "AMD Instinct MI300A",
    "0x74a1": "AMD Instinct MI300X",
    "0x74b5": "AMD Instinct MI300X VF",
    "0x74a2": "AMD Instinct MI308X",
    "0x74a5": "AMD Instinct MI325X",
    "0x74b9": "AMD Instinct MI325X VF",
    "0x74a9": "AMD Instinct MI300X HF",
    "0x75a0": "AMD Instinct MI350X",
    "0x75a3": "AMD Instinct MI355X",
    "0x744c": "AMD Radeon RX 7900 XTX/7900 XT",
    "0x7550": "AMD Radeon RX 9070/9070 XT",
    "0x7551": "AMD Radeon AI PRO R9700",
}
"""PCI device id → model, for cards without product_name in /sys (vLLM's platforms/rocm.py, pci.ids)."""

REVISIONS = {
    ("0x7550", "0xc0"): "AMD Radeon RX 9070 XT",
    ("0x7550", "0xc2"): "AMD Radeon RX 9070 GRE",
    ("0x7550", "0xc3"): "AMD Radeon RX 9070",
}
"""PCI device id and revision → model, for ids that several models share (libdrm, data/amdgpu.ids)."""

ARCHITECTURES = {
    **dict.fromkeys(("0x7408", "0x740c", "0x740f"), "gfx90a"),
    **dict.fromkeys(("0x74a0", "0x74a1", "0x74a2", "0x74a5", "0x74a9", "0x74b5", "0x74b9"), "gfx942"),
    **dict.fromkeys(("0x75a0", "0x75a3"), "gfx950"),
    **dict.fromkeys(("0x7550", "0x7551"), "gfx1201"),
    "0x744c": "gfx1100",
}
"""PCI device id → target that kernels are compiled for, where a tool does not print it (pci.ids, ROCm's GPU list)."""

MEMORY = {
    **dict.fromkeys(("0x7408", "0x740c", "0x740f"), 65520),
    **dict.fromkeys(("0x74a1", "0x74b5", "0x74a9", "0x74a2"), 196592),
    **dict.fromkeys(("0x74a5", "0x74b9"), 262128),
    **dict.fromkeys(("0x75a0", "0x75a3"), 294896),
    "0x7550": 16304,
    "0x7551": 32624,
}
"""PCI device id → MiB of a GPU (of a die), as amd-smi prints them; used where neither driver nor tool says it."""

APUS = ("gfx90c", "gfx1033", "gfx1035", "gfx1036", "gfx1037", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153")
"""Targets of GPUs that are part of a processor and share its memory (LLVM's AMDGPU processors, APU)."""

_DESKTOP = ("gfx10", "gfx11", "gfx12")
"""Families of cards that may drive a screen, whose windows take memory."""

_INTEGRATED = ("0x13c0", "0x164e")
"""GPUs inside desktop processors (Granite Ridge, Raphael: gfx1036), which ROCm has no kernels for (pci.ids)."""

_IDLE = 0.05
"""Share of a card's memory that firmware and screens take at most."""

_TWO_DIES = ("0x7408", "0x740c")
"""Packages with two dies. HIP counts each die as a GPU."""

_CARDS = (
    (("amd-smi", "static", "--asic", "--bus", "--vram", "--driver", "--json"), parse_amd_smi),
    (("rocm-smi", "--showproductname", "--showbus", "--showmeminfo", "vram", "--json"), parse_rocm_smi),
    (("amd-smi",), parse_amd_smi),
    (("rocm-smi", "--showmeminfo", "vram"), parse_rocm_smi),
    (("rocm-smi",), parse_rocm_smi),
)
"""JSON first. The tables are what an operator records, and what a tool prints whose JSON is broken."""
DEVICE_TOOL = ("rocm-smi",)
_WITHOUT_DRIVER = ((("rocminfo",), parse_rocminfo),)
"""rocminfo alone works without /dev/kfd (WSL)."""
_TOPOLOGY = (
    (("amd-smi", "topology", "--json"), parse_amd_topology),
    (("amd-smi", "topology"), parse_amd_topology),
    (("rocm-smi", "--showtopo", "--json"), parse_amd_topology),
)


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the GPUs that HIP finds in this container, and the links between them."""
    present = host.exists(KFD)
    if not present and not host.exists(_WSL):
        return ProbeResult()
    nodes = kfd.list_kfd_nodes(host)
    if not nodes:
        return _by_tools(host, run, present=present)
    open_nodes = tuple(node for node in nodes if check_device_file(host, f"/dev/dri/renderD{node.minor}"))
    words = [word.strip() for word in env.get(_ROCR_VISIBLE, "").split(",") if word.strip()]
    visible_nodes = _select_rocr_visible(open_nodes, words)
    unknown = any(not (_read_gpu_name(host, node) and node.memory) for node in visible_nodes)
    cards = (first_answer(host, run, _CARDS) if unknown else None) or ()
    wires = kfd.list_kfd_wires(host, visible_nodes)
    devices = tuple(
        _make_rocm_device(host, number, node, cards, (visible_nodes, wires))
        for number, node in enumerate(visible_nodes)
    )
    _require_memory(host, devices)
    return ProbeResult(
        devices,
        tuple(wire.link for wire in wires),
        _read_rocm_versions(host, visible_nodes, cards),
        _read_apu_memory(host, visible_nodes) | describe_missing_choice(_ROCR_VISIBLE, words, len(open_nodes)),
    )


def _read_apu_memory(host: Host, nodes: Iterable[GpuNode]) -> dict[str, str]:
    """Return the MiB of a GPU that is part of the processor: counted, carved out by the firmware, and shared (GTT)."""
    node = next((node for node in nodes if node.architecture in APUS), None)
    if node is None:
        return {}
    sizes = {name: number_of(host.parsed(f"{_PCI}/{node.bus}/mem_info_{name}_total", word_of, "")) for name in _POOLS}
    counted = {"apu_memory_mib": str((node.memory or 0) // MIB)}
    return counted | {f"apu_{name}_mib": str(size // MIB) for name, size in sizes.items() if size}


def _select_rocr_visible(nodes: tuple[GpuNode, ...], words: list[str]) -> tuple[GpuNode, ...]:
    """Return the GPUs that the words of ROCR_VISIBLE_DEVICES select, in its order. HIP counts only these."""
    if not words:
        return nodes
    by_word = {str(place): node for place, node in enumerate(nodes)} | {node.unique: node for node in nodes}
    return tuple(by_word[word] for word in words if word in by_word)


def _read_gpu_name(host: Host, node: GpuNode) -> str:
    shared_id = any(node.device == device for device, _ in REVISIONS)
    revision = host.parsed(f"{_PCI}/{node.bus}/revision", word_of, "") if shared_id else ""
    return host.parsed(f"{_PCI}/{node.bus}/product_name", word_of, "") or _find_gpu_model(node.device, revision)


def _find_gpu_model(device: str, revision: str) -> str:
    """Return the model of a PCI id; several models if only a revision that is not known tells which one it is."""
    return REVISIONS.get((device, revision)) or NAMES.get(device, "")


def _make_rocm_device(
    host: Host,
    number: int,
    node: GpuNode,
    cards: Iterable[AmdSmiCard],
    among: tuple[tuple[GpuNode, ...], tuple[Wire, ...]],
) -> Device:
    card = next((card for card in cards if card.bus == node.bus), AmdSmiCard(number))
    near, cpus = pci.read_pci_affinity(host, node.bus)
    used_bytes = kfd.sum_process_memory(host, node.gpu)
    whole = number_of(host.parsed(f"{_PCI}/{node.bus}/mem_info_{_find_memory_pool(host, node)}_used", word_of, ""))
    return Device(
        number=number,
        name=_read_gpu_name(host, node) or card.name,
        memory_total=node.memory or _estimate_card_memory(card._replace(device=node.device)).memory,
        memory_used=used_bytes if _is_partition(node, among[0]) else whole,
        node=near,
        module_id=number_of(host.parsed(f"{_PCI}/{node.bus}/xgmi_physical_id", word_of, "")),
        health=_read_ras_health(host, node.bus),
        busy=used_bytes > 0 if host.glob("/sys/class/kfd/kfd/proc") else None,
        bus=node.bus,
        cpus=cpus,
        architecture=node.architecture,
        path=f"/dev/dri/renderD{node.minor}",
        card=_find_card_number(number, *among),
    )


def _find_memory_pool(host: Host, node: GpuNode) -> str:
    """Return which pool the kernel counts as the GPU's memory: of an APU the larger one, since Linux 6.10.

    linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c and amdgpu_amdkfd.c, apu_prefer_gtt.
    """
    carved = number_of(host.parsed(f"{_PCI}/{node.bus}/mem_info_vram_total", word_of, ""))
    shares = node.architecture in APUS and carved is not None and (node.memory or 0) > carved
    return "gtt" if shares else "vram"


def _is_partition(node: GpuNode, nodes: tuple[GpuNode, ...]) -> bool:
    """Tell whether a GPU is one of several partitions of a card. The counters of /sys are for the whole card."""
    return sum(candidate.bus == node.bus for candidate in nodes) > 1 or node.partition > 0


def _find_card_number(number: int, nodes: tuple[GpuNode, ...], wires: tuple[Wire, ...]) -> int | None:
    """Return the card of a partition or die. A card has the number of its first device."""
    node = nodes[number]
    if _is_partition(node, nodes):
        return next(place for place, candidate in enumerate(nodes) if candidate.bus == node.bus)
    if node.device not in _TWO_DIES:
        return None
    card_wires = [wire for wire in wires if number in (wire.link.first, wire.link.second) and wire.bandwidth]
    widest = max(card_wires, key=lambda wire: wire.bandwidth, default=None)
    return widest.link.first if widest else number


def _read_ras_health(host: Host, bus: str) -> str:
    """Return `ok`, or the parts of the chip with uncorrected errors; empty if the driver has no counters."""
    counters = {
        path: host.parsed(path, parse_fields, {"ue": ""}) for path in host.glob(f"{_PCI}/{bus}/ras/*_err_count")
    }
    wrong = [path for path, counts in counters.items() if counts.get("ue", "0") not in ("0", "")]
    parts = (basename(path).removesuffix("_err_count") for path in wrong)
    if wrong:
        return f"uncorrected errors: {', '.join(parts)}"
    return "ok" if counters else ""


def _read_rocm_versions(host: Host, nodes: tuple[GpuNode, ...], cards: Iterable[AmdSmiCard]) -> dict[str, str]:
    release = host.parsed("/proc/sys/kernel/osrelease", word_of, "")
    driver = host.parsed("/sys/module/amdgpu/version", word_of, "") or next((card.driver for card in cards), "")
    first = nodes[0].bus if nodes else ""
    versions = {
        "driver": "" if driver == release else driver,  # the kernel's own driver has no separate version
        "rocm": host.parsed("/opt/rocm/.info/version", word_of, ""),
        "compute_partition": host.parsed(f"{_PCI}/{first}/current_compute_partition", word_of, "") if first else "",
        "memory_partition": host.parsed(f"{_PCI}/{first}/current_memory_partition", word_of, "") if first else "",
    }
    return drop_empty_values(versions)


# --- without /sys/class/kfd -----------------------------------------------------------------------------------------


def _by_tools(host: Host, run: Run, *, present: bool) -> ProbeResult:
    """Return the GPUs from tools only: some sandboxes hide /sys/class/kfd, and WSL does not have it."""
    cards = first_answer(host, run, (*_CARDS, *_WITHOUT_DRIVER) if present else _WITHOUT_DRIVER) or ()
    cards = tuple(card for card in cards if card.device not in _INTEGRATED)
    devices = tuple(_make_device_of_tool(host, _estimate_card_memory(card)) for card in cards)
    if present and not devices and not host.failures:
        host.fail(KFD, "no GPU in /sys/class/kfd, and no amd-smi, rocm-smi or rocminfo", "GPUs behind the device file")
    _require_memory(host, devices)
    modes = next((card.partitions for card in cards), ("", ""))
    versions = {
        "driver": next((card.driver for card in cards if card.driver), ""),
        "memory_partition": modes[0],
        "compute_partition": modes[1],
    }
    return ProbeResult(devices, _read_gpu_links(host, run, cards), drop_empty_values(versions))


def _estimate_card_memory(card: AmdSmiCard) -> AmdSmiCard:
    """Return the card with the memory of its model, and what is used of it, where the tool prints only a share."""
    whole = card.partitions[1] in ("", "SPX")
    model = MEMORY.get(_model_id(card), 0) * MIB if whole else 0
    memory = card.memory or model or None
    used_bytes = memory * card.share // 100 if memory and card.used is None and card.share is not None else card.used
    return card._replace(memory=memory, used=used_bytes)


def _model_id(card: AmdSmiCard) -> str:
    """Return a card's PCI device id, or one of its model; empty if the model is not known."""
    return card.device or next((device for device, name in NAMES.items() if name == card.name), "")


def _make_device_of_tool(host: Host, card: AmdSmiCard) -> Device:
    near, cpus = pci.read_pci_affinity(host, card.bus) if card.bus else (None, ())
    return Device(
        number=card.number,
        name=_name_card(card),
        memory_total=card.memory,
        memory_used=card.used,
        busy=_seems_busy(card),
        node=near,
        bus=card.bus,
        cpus=cpus,
        architecture=card.architecture or ARCHITECTURES.get(_model_id(card), ""),
    )


def _seems_busy(card: AmdSmiCard) -> bool | None:
    """Tell whether a process uses a card, by the memory in use. On a card with a screen, that may be its windows."""
    if card.used is None or not card.memory or card.used <= _IDLE * card.memory:
        return None if card.used is None or not card.memory else False
    return None if card.architecture.startswith(_DESKTOP) or "Radeon" in _name_card(card) else True


def _name_card(card: AmdSmiCard) -> str:
    """Return the name that the tool prints, or the model of the PCI id that it prints instead."""
    if card.name and card.name.lower() != card.device:
        return card.name
    return _find_gpu_model(card.device, card.revision) or card.device


def _read_gpu_links(host: Host, run: Run, cards: tuple[AmdSmiCard, ...]) -> tuple[Link, ...]:
    if len(cards) < 2:  # noqa: PLR2004 - a link has two ends
        return ()
    wires = first_answer(host, run, _TOPOLOGY) or ()
    numbers = {card.bus: card.number for card in cards if card.bus} | {str(card.number): card.number for card in cards}
    links = {
        (numbers[first], numbers[second]): kind
        for first, second, kind in wires
        if first in numbers and second in numbers and numbers[first] < numbers[second]
    }
    return tuple(Link(first, second, kind) for (first, second), kind in sorted(links.items()))


def _require_memory(host: Host, devices: Iterable[Device]) -> None:
    unknown = [str(device.number) for device in devices if not device.memory_total]
    if unknown:
        host.fail(
            f"the memory of GPU {', '.join(unknown)}",
            "not in /sys/class/kfd, and no tool reports it",
            "install amd-smi or rocm-smi in the image, or mount /sys as Docker does",
        )
