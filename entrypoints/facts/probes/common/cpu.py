"""The processor: instruction set, hardware threads, NUMA nodes. All accelerators use it; on `cpu` it is the device."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.core.parse import parse_fields, parse_id_list, parse_line, parse_meminfo, parse_number
from entrypoints.core.records import Cpu, Memory, Node, ProbeResult, Processor
from entrypoints.host.host import Host, Run

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"

_ARM_VENDORS = {
    "0x41": "ARM",
    "0x43": "Cavium",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x50": "APM",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0x6d": "Microsoft",
    "0x70": "Phytium",
    "0xc0": "Ampere",
}
"""`CPU implementer` in /proc/cpuinfo → vendor, from arch/arm64/include/asm/cputype.h."""


def probe(_host: Host, _run: Run, _env: Mapping[str, str]) -> ProbeResult:
    """Return no devices, because vLLM's CPU backend runs on the processor."""
    return ProbeResult()


def read_processor(host: Host, architecture: str) -> Processor:
    """Read /proc/cpuinfo. Its layout depends on the architecture."""
    parse = _LAYOUTS.get(architecture, _parse_other)
    unknown = Processor(architecture, "", "", ())
    processor = host.parsed("/proc/cpuinfo", lambda text: parse(architecture, parse_fields(text)), unknown)
    if "/proc/cpuinfo" not in host.texts:
        host.fail("/proc/cpuinfo", "no such file", "the processor's instruction set")
    return processor


def _parse_x86(architecture: str, fields: Mapping[str, str]) -> Processor:
    if not fields.get("flags"):
        raise ValueError("a line `flags : …`")
    return Processor(
        architecture, fields.get("vendor_id", ""), fields.get("model name", ""), tuple(fields["flags"].split())
    )


def _parse_arm(architecture: str, fields: Mapping[str, str]) -> Processor:
    if not fields.get("features"):
        raise ValueError("a line `Features : …`")
    implementer = fields.get("cpu implementer", "")
    vendor = _ARM_VENDORS.get(implementer, implementer)
    model = fields.get("model name") or f"part {fields.get('cpu part', 'unknown')}"
    return Processor(architecture, vendor, model, tuple(fields["features"].split()))


def _parse_s390x(architecture: str, fields: Mapping[str, str]) -> Processor:
    if not fields.get("features"):
        raise ValueError("a line `features : …`")
    _, _, machine = fields.get("processor 0", "").rpartition("machine = ")
    return Processor(architecture, fields.get("vendor_id", ""), machine, tuple(fields["features"].split()))


def _parse_power(architecture: str, fields: Mapping[str, str]) -> Processor:
    if not fields.get("cpu"):
        raise ValueError("a line `cpu : …`")
    model, _, rest = fields["cpu"].partition(",")
    flags = tuple(word.split()[0] for word in rest.split(",") if word.strip().endswith("supported"))
    return Processor(architecture, "IBM", model.strip(), flags)


def _parse_other(architecture: str, fields: Mapping[str, str]) -> Processor:
    if not fields:
        raise ValueError("lines `key : value`")
    return Processor(architecture, fields.get("mvendorid", ""), fields.get("uarch", ""), (fields.get("isa", ""),))


_LAYOUTS = {
    "x86_64": _parse_x86,
    "aarch64": _parse_arm,
    "s390x": _parse_s390x,
    "ppc64le": _parse_power,
}


def read_online_cpus(host: Host, allowed: tuple[int, ...]) -> tuple[int, ...]:
    """Return the CPUs that are online, or the allowed ones if the kernel does not report it."""
    return host.parsed(f"{_CPU}/online", parse_id_list, allowed)


def read_cpus(host: Host, usable: tuple[int, ...], nodes_of: Mapping[int, int]) -> tuple[Cpu, ...]:
    """Return core, socket and siblings of the CPUs that are online and allowed.

    A host may have hundreds of threads, so one file is read for each core and two for each socket.
    """
    siblings: dict[int, tuple[int, ...]] = {}
    sockets: dict[int, int] = {}
    for number in usable:
        if number not in siblings:
            siblings.update(_read_cpu_group(host, number, ("thread_siblings_list", "core_cpus_list")))
        if number not in sockets:
            package = _read_cpu_group(host, number, ("package_cpus_list", "core_siblings_list"))
            socket = max(0, host.parsed(f"{_CPU}/cpu{number}/topology/physical_package_id", _parse_id, 0))
            sockets.update(dict.fromkeys(package, socket))
    if not usable:
        host.fail(f"{_CPU}/online", "no online CPU that this process may use", "at least one")
    return tuple(
        Cpu(number, siblings[number][0], sockets[number], nodes_of.get(number, 0), siblings[number])
        for number in usable
    )


def _read_cpu_group(host: Host, number: int, names: tuple[str, str]) -> dict[int, tuple[int, ...]]:
    """Return each member of a CPU's group → the whole group. The file has one of two names, depending on the kernel."""
    for name in names:
        members: tuple[int, ...] = host.parsed(f"{_CPU}/cpu{number}/topology/{name}", parse_id_list, ())
        if number in members:
            return dict.fromkeys(members, members)
    return {number: (number,)}


def _parse_id(text: str) -> int:
    """Parse a topology id, which is -1 in virtual machines that do not know it."""
    return -1 if text.strip() == "-1" else parse_number(text)


def allowed_ids(host: Host, status: Mapping[str, str], key: str) -> tuple[int, ...]:
    """Return a list such as `Cpus_allowed_list` from the status of this process."""
    try:
        return parse_id_list(status[key])
    except (KeyError, ValueError):
        host.fail("/proc/self/status", repr(status.get(key, "nothing")[:80]), f"a line `{key.capitalize()}: 0-3,8`")
        return ()


def read_numa_nodes(
    host: Host, status: Mapping[str, str], running: tuple[int, ...], memory: Memory
) -> tuple[tuple[Node, ...], dict[int, int]]:
    """Return the NUMA nodes that this process may allocate memory from, and the node of each CPU of the host.

    A kernel without NUMA does not have the folder; then everything is node 0.
    """
    numbers: tuple[int, ...] = host.parsed(f"{_NODE}/online", parse_id_list, ())
    if not numbers:
        return (Node(0, running, memory.total, memory.available),), dict.fromkeys(running, 0)
    all_nodes = tuple(_read_numa_node(host, number) for number in numbers)
    members = {cpu: node.id for node in all_nodes for cpu in node.cpus}
    if "mems_allowed_list" not in status:  # a kernel without cpusets allows all nodes
        return all_nodes, members
    allowed = allowed_ids(host, status, "mems_allowed_list")
    return tuple(node for node in all_nodes if node.id in allowed), members


def _read_numa_node(host: Host, number: int) -> Node:
    members: tuple[int, ...] = host.parsed(f"{_NODE}/node{number}/cpulist", parse_id_list, ())
    sizes: dict[str, int] = host.parsed(f"{_NODE}/node{number}/meminfo", parse_meminfo, {})
    reclaimable = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    return Node(number, members, sizes.get("MemTotal", 0), sum(sizes.get(name, 0) for name in reclaimable))


def read_governor(host: Host, cpus: tuple[Cpu, ...]) -> str | None:
    """Return the frequency governor of the first usable CPU."""
    if not cpus:
        return None
    return host.parsed(f"{_CPU}/cpu{cpus[0].id}/cpufreq/scaling_governor", parse_line, None)
