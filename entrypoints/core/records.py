"""The image side's records: what a host is, what is wrong with it, and what will be started, with reasons.

NamedTuples, since a frozen dataclass costs a start-up 14 ms more. Every record prints as JSON through `to_json`.
Memory is in bytes, time in seconds, frequencies in kHz as Linux reports them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Cpu(NamedTuple):
    """One logical CPU (hardware thread)."""

    id: int
    core: int
    """Physical core: the number of its first logical CPU."""
    socket: int
    node: int
    siblings: tuple[int, ...]
    """Logical CPUs of the same physical core, this one included."""


class Node(NamedTuple):
    """One NUMA node; a node without CPUs (memory only) or without memory is possible."""

    id: int
    cpus: tuple[int, ...]
    memory_total: int
    memory_free: int
    """What an allocation can get: free pages, page cache and reclaimable slab, as vLLM's CPU worker counts it."""


class Cgroup(NamedTuple):
    """Limits that the container runtime set; None means unlimited."""

    version: int
    memory_limit: int | None
    memory_used: int
    cpu_quota: float | None
    """CPUs' worth of time, 1.5 meaning one and a half."""
    pids_limit: int | None


class Processor(NamedTuple):
    """What the instruction set allows."""

    architecture: str
    """As uname: x86_64, aarch64, s390x, ppc64le, riscv64."""
    vendor: str
    model: str
    flags: tuple[str, ...]


class Memory(NamedTuple):
    total: int
    available: int
    swap_total: int
    swap_free: int


class Mount(NamedTuple):
    """A folder the server needs: whether it exists, can be written, and its free and total bytes."""

    path: str
    exists: bool
    writable: bool
    free: int
    total: int
    filesystem: str


class Limits(NamedTuple):
    """Soft resource limits, and how far two of them may be raised; None means unlimited."""

    nofile: int | None
    memlock: int | None
    nproc: int | None
    nofile_hard: int | None = 0
    """Hard limit; 0 where nothing tells it."""
    memlock_hard: int | None = 0

    def reachable(self, name: str) -> int | None:
        """Return how high a limit may be set: its hard limit, or the soft one where that is all that is known."""
        soft, hard = getattr(self, name), getattr(self, f"{name}_hard", 0)
        return None if soft is None or hard is None else max(soft, hard)


class Device(NamedTuple):
    """One accelerator as vLLM counts them: a card, or one die of a card that has several. None on cpu."""

    number: int
    """As the vendor's runtime numbers it inside this container."""
    name: str
    """The model as the vendor's tool or driver writes it: HL-225, 910B3, NVIDIA H100 80GB HBM3."""
    memory_total: int | None
    """None where nothing tells it here."""
    memory_used: int | None
    node: int | None
    """NUMA node; None where the machine does not say."""
    module_id: int | None = None
    """Where the vendor numbers places apart from devices: Gaudi's module id, Ascend's physical id."""
    health: str = ""
    """`ok`, or the vendor's own word; empty where nothing tells it here."""
    busy: bool | None = None
    """Whether another process holds it; None where nothing tells it here."""
    bus: str = ""
    """PCI address with its domain: 0000:19:00.0."""
    cpus: tuple[int, ...] = ()
    """Logical CPUs near it; empty where the machine does not say."""
    architecture: str = ""
    """What kernels are compiled for, in the vendor's words: gaudi2, ascend910b, 9.0, gfx942, v5p, trn2."""
    path: str = ""
    """Its device file: /dev/accel/accel0."""
    card: int | None = None
    """For a die: the card that it is part of (an A3's NPU, an MI250's package)."""
    uuid: str = ""
    """What the vendor's runtime may name it by instead of its number: GPU-…, MIG-…."""
    cores: int = 1
    """How many ranks vLLM makes of it: the logical NeuronCores of a Neuron device; elsewhere a device is one rank."""


class Link(NamedTuple):
    """How two devices reach each other, in the vendor's words: NV18, XGMI, HCCS, SYS."""

    first: int
    second: int
    kind: str


class Seen(NamedTuple):
    """What an accelerator's probe returns."""

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    """Each pair once, the lower number first."""
    versions: Mapping[str, str] = MappingProxyType({})
    """By part: driver, firmware, tool, toolkit … as digits and dots as far as the vendor writes them so."""
    knobs: Mapping[str, str] = MappingProxyType({})
    """The driver's settings by a short name, as text: they join the kernel's in `Facts.kernel`."""


class Failure(NamedTuple):
    """Something that should have been readable and was not: becomes a FAIL finding, never a default."""

    where: str
    """The path or the command."""
    found: str
    """errno and text, the command's last line, or the text that did not parse."""
    expected: str


class Facts(NamedTuple):
    """All that probes saw. No opinions."""

    accelerator: str
    processor: Processor
    cpus: tuple[Cpu, ...]
    """Online logical CPUs that this process may run on (affinity and cpuset applied)."""
    nodes: tuple[Node, ...]
    """Online NUMA nodes that this process may take memory from."""
    memory: Memory
    cgroup: Cgroup
    limits: Limits
    mounts: Mapping[str, Mount]
    """By role: cache, shm, tmp."""
    kernel: Mapping[str, str]
    """Tuning knobs by a short name, as text: governor, transparent_hugepage, swappiness, numa_balancing, seccomp …"""
    devices: tuple[Device, ...]
    user: tuple[int, int]
    """uid, gid."""
    failures: tuple[Failure, ...]
    files: Mapping[str, bool] = MappingProxyType({})
    """Preload libraries of the image by name, such as tcmalloc: whether the file is there."""
    links: tuple[Link, ...] = ()
    """Between devices."""
    versions: Mapping[str, str] = MappingProxyType({})
    """Of the accelerator's driver, firmware and tools, by part."""
    capabilities: tuple[str, ...] = ()
    """Those that accelerators need and the container was given, without CAP_; effective for root alone in Docker."""
    grants: Mapping[str, bool] = MappingProxyType({})
    """What the image is run with (device files, mounted files), by path or pattern: whether it is there and opens."""
    refused: Mapping[str, str] = MappingProxyType({})
    """Device files that are there and may not be opened → mode, owner and group: `crw-rw---- 0:110`."""


class Notice(NamedTuple):
    """A finding as code makes it: its id and what is known here. `findings.tell` adds what the profile says of it."""

    id: str
    found: str
    expected: str
    values: Mapping[str, str] = MappingProxyType({})
    """What is filled in for the names in braces of its text, remediation and source."""


class Finding(NamedTuple):
    """The outcome of one check."""

    id: str
    severity: str
    """PASS, INFO, WARN, FAIL, or UNKNOWN when the fact could not be read here."""
    text: str
    found: str
    expected: str
    remediation: str
    scope: str
    """host or container: who can change it."""
    source: str
    read: str = ""
    """The file or tool that tells it in a container."""
    fix: Mapping[str, Any] = MappingProxyType({})
    """What mends it on the host (Fix of drydock/checks.py); empty where nothing is wrong, or only a person can."""


class Reason(NamedTuple):
    """Why a setting has its value; `setting` is the flag (`--dtype`) or variable (`OMP_NUM_THREADS`)."""

    setting: str
    value: str
    origin: str
    """One of cascade.ORDER."""
    because: str
    instead: tuple[str, ...] = ()
    """Why not the alternatives, one sentence each."""


class Entry(NamedTuple):
    """A folder of compiled code that is filled, kept, handed on and set aside as one."""

    name: str
    """Of the folder."""
    factors: Mapping[str, str]
    """What must be the same to use it."""
    carry: tuple[str, ...] = ()
    """Folders in it that hold for any plan: a new entry takes them over from the nearest one."""


class CachePlan(NamedTuple):
    """Where a start writes, and what it may find there."""

    volume: str = ""
    """Where entries are kept between starts."""
    work: str = ""
    """Where vLLM works: the volume, or a private folder."""
    why: str = ""
    """Why `work` is not the volume; empty when it is."""
    entries: tuple[Entry, ...] = ()
    """Device's first, then the plan's."""
    folders: Mapping[str, str] = MappingProxyType({})
    """Variable → the folder that it names."""
    sources: tuple[str, ...] = ()
    """Other cache folders, read-only or remote, that entries are copied from (DRYDOCK_CACHE_FROM)."""
    publish: bool = False
    """Whether what is new at `work` belongs on the volume, which is too slow to work on."""


class ServePlan(NamedTuple):
    """Everything `serve` will do. `env` holds only what is set on top of the inherited environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    reasons: tuple[Reason, ...]
    findings: tuple[Finding, ...]
    model: str
    host: str
    """Address vLLM binds to, as it was given."""
    port: int
    limits: Mapping[str, int] = MappingProxyType({})
    """Soft resource limits that are raised before vLLM starts, as resource names them; -1 means unlimited."""
    cache: CachePlan = CachePlan()
    files: Mapping[str, str] = MappingProxyType({})
    """Path → text of what the environment refers to; written before vLLM starts."""


def to_json(value: Any) -> Any:
    """Turn records into plain JSON values, field by field; tuples become lists."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {field: to_json(item) for field, item in zip(value._fields, value, strict=True)}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value
