"""AMD GPUs: reads /sys (the kernel's compute driver), then amd-smi, rocm-smi or rocminfo. IO.

A device is what HIP counts: a GPU, a die of an MI250, or a partition of a GPU in DPX, QPX or CPX mode. Devices have
HIP's numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from entrypoints.core.parse import parse_fields
from entrypoints.core.records import Device, Link, ProbeResult
from entrypoints.facts.probes.common import pci
from entrypoints.facts.probes.common.printed import number_of, word_of
from entrypoints.facts.probes.common.tools import run_tool
from entrypoints.facts.probes.rocm import kfd
from entrypoints.facts.probes.rocm.amdsmi import (
    AmdSmiCard,
    parse_amd_smi,
    parse_rocm_smi,
    parse_rocminfo,
    parse_topology,
)
from entrypoints.facts.probes.rocm.kfd import GpuNode, Wire
from entrypoints.host.host import Host, Run

KFD = "/dev/kfd"
_WSL = "/dev/dxg"
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
    "0x7550": "AMD Radeon RX 9070 XT",
    "0x7551": "AMD Radeon AI PRO R9700",
}
"""PCI device id → model, for cards without product_name in /sys (vLLM's platforms/rocm.py, pci.ids)."""

_TWO_DIES = ("0x7408", "0x740c")
"""Packages with two dies. HIP counts each die as a GPU."""

_STATIC = ("amd-smi", "static", "--asic", "--bus", "--vram", "--driver", "--json")
_ROCM_SMI = ("rocm-smi", "--showproductname", "--showbus", "--showmeminfo", "vram", "--json")
_TOPOLOGY = (("amd-smi", "topology", "--json"), ("amd-smi", "topology"), ("rocm-smi", "--showtopo"))


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the GPUs that HIP finds in this container, and the links between them."""
    present = host.exists(KFD)
    if not present and not host.exists(_WSL):
        return ProbeResult()
    found = kfd.nodes(host)
    if not found:
        return _by_tools(host, run, present=present)
    given = _visible(tuple(node for node in found if _opens(host, node)), env)
    cards = _cards(host, run) if any(not (_name(host, node) and node.memory) for node in given) else ()
    wires = kfd.wires(host, given)
    devices = tuple(_device(host, number, node, cards, (given, wires)) for number, node in enumerate(given))
    _require_memory(host, devices)
    return ProbeResult(devices, tuple(wire.link for wire in wires), _versions(host, given, cards))


def _opens(host: Host, node: GpuNode) -> bool:
    """Tell whether the GPU's render node can be opened. If it exists but cannot be opened, add a failure."""
    path = f"/dev/dri/renderD{node.minor}"
    if host.openable(path):
        return True
    if host.exists(path):
        host.fail(
            path, "no read and write permission for this user", "docker run --group-add with the number of its group"
        )
    return False


def _visible(found: tuple[GpuNode, ...], env: Mapping[str, str]) -> tuple[GpuNode, ...]:
    """Return the GPUs that ROCR_VISIBLE_DEVICES selects, in its order. HIP counts only these."""
    words = [word.strip() for word in env.get("ROCR_VISIBLE_DEVICES", "").split(",") if word.strip()]
    if not words:
        return found
    by_word = {str(place): node for place, node in enumerate(found)} | {node.unique: node for node in found}
    return tuple(by_word[word] for word in words if word in by_word)


def _cards(host: Host, run: Run) -> tuple[AmdSmiCard, ...]:
    return run_tool(host, run, _STATIC, parse_amd_smi) or run_tool(host, run, _ROCM_SMI, parse_rocm_smi) or ()


def _name(host: Host, node: GpuNode) -> str:
    return host.parsed(f"{_PCI}/{node.bus}/product_name", word_of, "") or NAMES.get(node.device, "")


def _device(
    host: Host,
    number: int,
    node: GpuNode,
    cards: Iterable[AmdSmiCard],
    among: tuple[tuple[GpuNode, ...], tuple[Wire, ...]],
) -> Device:
    card = next((card for card in cards if card.bus == node.bus), AmdSmiCard(number))
    near, cpus = pci.near(host, node.bus)
    held = kfd.taken(host, node.gpu)
    whole = number_of(host.parsed(f"{_PCI}/{node.bus}/mem_info_vram_used", word_of, ""))
    return Device(
        number=number,
        name=_name(host, node) or card.name,
        memory_total=node.memory or card.memory,
        memory_used=held if _shared(node, among[0]) else whole,
        node=near,
        module_id=number_of(host.parsed(f"{_PCI}/{node.bus}/xgmi_physical_id", word_of, "")),
        health=_health(host, node.bus),
        busy=held > 0 if host.glob("/sys/class/kfd/kfd/proc") else None,
        bus=node.bus,
        cpus=cpus,
        architecture=node.architecture,
        path=f"/dev/dri/renderD{node.minor}",
        card=_card(number, *among),
    )


def _shared(node: GpuNode, found: tuple[GpuNode, ...]) -> bool:
    """Tell whether a GPU is one of several partitions of a card. The counters of /sys are for the whole card."""
    return sum(other.bus == node.bus for other in found) > 1 or node.partition > 0


def _card(number: int, found: tuple[GpuNode, ...], wires: tuple[Wire, ...]) -> int | None:
    """Return the card of a partition or die. A card has the number of its first device."""
    node = found[number]
    if _shared(node, found):
        return next(place for place, other in enumerate(found) if other.bus == node.bus)
    if node.device not in _TWO_DIES:
        return None
    own = [wire for wire in wires if number in (wire.link.first, wire.link.second) and wire.bandwidth]
    widest = max(own, key=lambda wire: wire.bandwidth, default=None)
    return widest.link.first if widest else number


def _health(host: Host, bus: str) -> str:
    """Return `ok`, or the parts of the chip with uncorrected errors; empty if the driver has no counters."""
    counters = {
        path: host.parsed(path, parse_fields, {"ue": ""}) for path in host.glob(f"{_PCI}/{bus}/ras/*_err_count")
    }
    wrong = [path for path, counts in counters.items() if counts.get("ue", "0") not in ("0", "")]
    parts = (path.rpartition("/")[2].removesuffix("_err_count") for path in wrong)
    if wrong:
        return f"uncorrected errors: {', '.join(parts)}"
    return "ok" if counters else ""


def _versions(host: Host, found: tuple[GpuNode, ...], cards: Iterable[AmdSmiCard]) -> dict[str, str]:
    release = host.parsed("/proc/sys/kernel/osrelease", word_of, "")
    driver = host.parsed("/sys/module/amdgpu/version", word_of, "") or next((card.driver for card in cards), "")
    first = found[0].bus if found else ""
    versions = {
        "driver": "" if driver == release else driver,  # the kernel's own driver has no separate version
        "rocm": host.parsed("/opt/rocm/.info/version", word_of, ""),
        "compute_partition": host.parsed(f"{_PCI}/{first}/current_compute_partition", word_of, "") if first else "",
        "memory_partition": host.parsed(f"{_PCI}/{first}/current_memory_partition", word_of, "") if first else "",
    }
    return {name: version for name, version in versions.items() if version}


# --- without /sys/class/kfd -----------------------------------------------------------------------------------------


def _by_tools(host: Host, run: Run, *, present: bool) -> ProbeResult:
    """Return the GPUs from tools only: some sandboxes hide /sys/class/kfd, and WSL does not have it."""
    cards = (_cards(host, run) or _rocm_table(host, run)) if present else ()
    cards = cards or run_tool(host, run, ("rocminfo",), parse_rocminfo) or ()
    devices = tuple(_seen(host, card) for card in cards)
    if present and not devices and not host.failures:
        host.fail(KFD, "no GPU in /sys/class/kfd, and no amd-smi, rocm-smi or rocminfo", "GPUs behind the device file")
    _require_memory(host, devices)
    modes = next((card.partitions for card in cards), ("", ""))
    versions = {
        "driver": next((card.driver for card in cards if card.driver), ""),
        "memory_partition": modes[0],
        "compute_partition": modes[1],
    }
    return ProbeResult(
        devices, _links(host, run, cards), {name: version for name, version in versions.items() if version}
    )


def _rocm_table(host: Host, run: Run) -> tuple[AmdSmiCard, ...]:
    """Run older tools without JSON output."""
    memory = run_tool(host, run, ("rocm-smi", "--showuse", "--showmeminfo", "vram"), parse_rocm_smi) or ()
    table = {card.number: card for card in run_tool(host, run, ("rocm-smi",), parse_rocm_smi) or ()}
    return tuple(
        card._replace(name=card.name or table.get(card.number, card).name) for card in memory or table.values()
    )


def _seen(host: Host, card: AmdSmiCard) -> Device:
    near, cpus = pci.near(host, card.bus) if card.bus else (None, ())
    return Device(
        number=card.number,
        name=NAMES.get(card.name, card.name),
        memory_total=card.memory,
        memory_used=card.used,
        node=near,
        bus=card.bus,
        cpus=cpus,
        architecture=card.architecture,
    )


def _links(host: Host, run: Run, cards: tuple[AmdSmiCard, ...]) -> tuple[Link, ...]:
    if len(cards) < 2:  # noqa: PLR2004 - a link has two ends
        return ()
    wires = next((wires for argv in _TOPOLOGY if (wires := run_tool(host, run, argv, parse_topology))), ())
    numbers = {card.bus: card.number for card in cards if card.bus} | {str(card.number): card.number for card in cards}
    found = {
        (numbers[first], numbers[second]): kind
        for first, second, kind in wires
        if first in numbers and second in numbers and numbers[first] < numbers[second]
    }
    return tuple(Link(first, second, kind) for (first, second), kind in sorted(found.items()))


def _require_memory(host: Host, devices: Iterable[Device]) -> None:
    unknown = [str(device.number) for device in devices if not device.memory_total]
    if unknown:
        host.fail(
            f"the memory of GPU {', '.join(unknown)}",
            "not in /sys/class/kfd, and no tool reports it",
            "install amd-smi or rocm-smi in the image, or mount /sys as Docker does",
        )
