"""Facts that follow from several other facts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from entrypoints.core.parse import format_id_list, is_number
from entrypoints.core.records import Device, Facts
from entrypoints.core.units import GIB, MIB

UNLIMITED = 1 << 62
"""Value of an unlimited resource limit in comparisons: above every threshold."""

_FIRMWARE = 0.2
"""Share of a device's memory above which a process holds it, rather than firmware."""

MISSING_CHOICE = ("devices_chosen_by", "devices_missing", "devices_present")
"""Facts about a variable that names a missing device: its name, the device, and the devices that there are."""


def describe_missing_choice(variable: str, words: Iterable[str], count: int) -> dict[str, str]:
    """Return the facts about a variable that a probe applies, if it names a number that none of `count` devices has."""
    missing = next((word for word in words if is_number(word) and int(word) >= count), "")
    present = format_id_list(tuple(range(count)))
    return dict(zip(MISSING_CHOICE, (variable, missing, present), strict=True)) if missing and count else {}


def derive_facts(facts: Facts) -> dict[str, Any]:
    """Return the facts that follow from several others. Facts that are unknown are left out.

    physical_cores, threads_per_core: of the usable CPUs.
    numa_nodes: nodes with usable CPUs and memory.
    nodes_per_socket: more than one with sub-NUMA clustering.
    numa_cpus_without_memory: usable CPUs whose own node has no usable memory.
    cpu_quota_covers: whether the CPU quota of the container covers its cores.
    cpu_quota_whole: whether the CPU quota is a whole number of CPUs.
    memory_gib: the smaller of the container's limit and the host's memory.
    memory_available_gib: memory that can still be allocated.
    swap_used_mib: swap in use.
    hugepages_idle_percent: idle huge pages, as a share of the host's memory.
    shm_gib, cache_free_gib: size of /dev/shm (0 if there is none), free space of the cache folder.
    memlock_mib, nofile: the highest values that `serve` can set.
    pids: the smaller limit of processes and threads: the container's, and its user's (RLIMIT_NPROC).
    mempolicy: whether memory can be bound to a NUMA node (allowed, blocked).
    devices: number of devices.
    architectures, names: the different ones among the devices. A device whose architecture is not known, such as a
    card that no vLLM supports, has its name instead.
    """
    cores = {(cpu.node, cpu.socket, cpu.siblings) for cpu in facts.cpus}
    quota, shm, cache = facts.cgroup.cpu_quota, facts.mounts.get("shm"), facts.mounts.get("cache")
    derived_facts = {
        "physical_cores": len(cores),
        "threads_per_core": max((len(cpu.siblings) for cpu in facts.cpus), default=None),
        "numa_nodes": len(_cpus_of_nodes_with_memory(facts)),
        "nodes_per_socket": _nodes_per_socket(facts),
        "numa_cpus_without_memory": _cpus_without_memory(facts),
        "cpu_quota_covers": quota is None or quota >= len(cores),
        "cpu_quota_whole": quota is None or quota == int(quota),
        "memory_gib": _round_to_gib(min(facts.memory.total, facts.cgroup.memory_limit or facts.memory.total)),
        "memory_available_gib": _round_to_gib(available_memory(facts)),
        "swap_used_mib": (facts.memory.swap_total - facts.memory.swap_free) // MIB,
        "shm_gib": _round_to_gib(shm.total) if shm else None,
        "cache_free_gib": _round_to_gib(cache.free) if cache and cache.writable else None,
        "hugepages_idle_percent": _idle_huge_pages(facts),
        "memlock_mib": _as_number(facts.limits.reachable("memlock")) // MIB,
        "nofile": _as_number(facts.limits.reachable("nofile")),
        "pids": min(_as_number(facts.cgroup.pids_limit), _as_number(facts.limits.nproc)),
        "mempolicy": _describe_mempolicy(facts.kernel),
        "devices": len(facts.devices) or None,
        "architectures": sorted({device.architecture or device.name for device in facts.devices} - {""}) or None,
        "names": sorted({device.name for device in facts.devices if device.name}) or None,
    }
    return {name: value for name, value in derived_facts.items() if value is not None}


def available_memory(facts: Facts) -> int:
    """Return the bytes that can still be allocated, by the limits of the host and of the container."""
    if facts.cgroup.memory_limit is None:
        return facts.memory.available
    return max(0, min(facts.memory.available, facts.cgroup.memory_limit - facts.cgroup.memory_used))


def make_idle(facts: Facts) -> Facts:
    """Return the facts of the same machine idle and whole: no other process, healthy devices, all memory free.

    What a device's firmware keeps stays. So do the limits of a container, which no process set.
    """
    shm = facts.mounts.get("shm")
    return facts._replace(
        devices=tuple(_make_device_idle(device, facts.devices) for device in facts.devices),
        memory=facts.memory._replace(available=facts.memory.total, swap_free=facts.memory.swap_total),
        nodes=tuple(node._replace(memory_free=node.memory_total) for node in facts.nodes),
        cgroup=facts.cgroup._replace(memory_used=0),
        mounts={**facts.mounts, "shm": shm._replace(free=shm.total)} if shm else facts.mounts,
    )


def _make_device_idle(device: Device, devices: tuple[Device, ...]) -> Device:
    alike = (other.memory_used for other in devices if other.name == device.name and not other.busy)
    used = min((size for size in (device.memory_used, *alike) if size is not None), default=None)
    if used is not None and device.memory_total and used >= _FIRMWARE * device.memory_total:
        used = 0
    busy = None if device.busy is None else False
    return device._replace(memory_used=used, busy=busy, health="ok" if device.health else "")


def _cpus_of_nodes_with_memory(facts: Facts) -> list[set[int]]:
    """Return, for each node with memory and usable CPUs, these CPUs."""
    usable = {cpu.id for cpu in facts.cpus}
    members = (usable & set(node.cpus) for node in facts.nodes if node.memory_total)
    return [cpus for cpus in members if cpus]


def _cpus_without_memory(facts: Facts) -> int:
    with_memory = set().union(*_cpus_of_nodes_with_memory(facts))
    return len({cpu.id for cpu in facts.cpus} - with_memory)


def _nodes_per_socket(facts: Facts) -> int | None:
    sockets: dict[int, set[int]] = {}
    for cpu in facts.cpus:
        sockets.setdefault(cpu.socket, set()).add(cpu.node)
    return max((len(nodes) for nodes in sockets.values()), default=None)


def _idle_huge_pages(facts: Facts) -> int | None:
    """Return the share of memory, in percent, that is reserved for huge pages and not used."""
    try:
        pages, size_kib = float(facts.kernel["hugepages_idle"]), float(facts.kernel["hugepage_kib"])
    except (KeyError, ValueError):
        return None
    if not facts.memory.total:
        return None
    return round(100 * pages * size_kib * 1024 / facts.memory.total)


def _as_number(limit: int | None) -> int:
    return UNLIMITED if limit is None else limit


def _describe_mempolicy(kernel: Mapping[str, str]) -> str | None:
    """Tell whether seccomp blocks set_mempolicy: Docker's default filter allows it only with CAP_SYS_NICE."""
    if "seccomp" not in kernel or "sys_nice" not in kernel:
        return None
    return "allowed" if kernel["seccomp"] == "disabled" or kernel["sys_nice"] == "yes" else "blocked"


def _round_to_gib(size: int) -> float:
    return round(size / GIB, 2)
