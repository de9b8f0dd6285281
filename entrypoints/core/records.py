"""The records of the image side: facts about a host, findings, and the plan to serve, with reasons.

They are NamedTuples, because importing dataclasses takes 14 ms at each start. `to_json` converts every record to JSON.
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
    """One NUMA node. A node may have no CPUs (memory only) or no memory."""

    id: int
    cpus: tuple[int, ...]
    memory_total: int
    memory_free: int
    """Memory available for allocation: free pages, page cache and reclaimable slab, as vLLM's CPU worker counts it."""


class Cgroup(NamedTuple):
    """Limits that the container runtime set. None means unlimited."""

    version: int
    memory_limit: int | None
    memory_used: int
    cpu_quota: float | None
    """CPU time as a number of CPUs, such as 1.5."""
    pids_limit: int | None


class Processor(NamedTuple):
    """The processor and its instruction set."""

    architecture: str
    """As `uname -m` prints it: x86_64, aarch64, s390x, ppc64le, riscv64."""
    vendor: str
    model: str
    flags: tuple[str, ...]


class Memory(NamedTuple):
    total: int
    available: int
    swap_total: int
    swap_free: int


class Mount(NamedTuple):
    """A folder that the server needs: whether it exists and is writable, and its free and total bytes."""

    path: str
    exists: bool
    writable: bool
    free: int
    total: int
    filesystem: str


class Limits(NamedTuple):
    """Soft resource limits, and the hard limits of two of them. None means unlimited."""

    nofile: int | None
    memlock: int | None
    nproc: int | None
    nofile_hard: int | None = 0
    """Hard limit; 0 if it is unknown."""
    memlock_hard: int | None = 0

    def reachable(self, name: str) -> int | None:
        """Return the highest value that a limit can be set to: the hard limit, or the soft one if it is higher."""
        soft, hard = getattr(self, name), getattr(self, f"{name}_hard", 0)
        return None if soft is None or hard is None else max(soft, hard)


class Device(NamedTuple):
    """One device as vLLM counts them: a card, or one die of a card that has several. CPU hosts have none."""

    number: int
    """The number that the vendor's runtime gives it in this container."""
    name: str
    """The model name that the vendor's tool or driver prints: HL-225, 910B3, NVIDIA H100 80GB HBM3."""
    memory_total: int | None
    """None if it is unknown."""
    memory_used: int | None
    node: int | None
    """NUMA node; None if the machine does not report it."""
    module_id: int | None = None
    """The vendor's number of the slot, where it differs from the device number: Gaudi's module id, Ascend's
    physical id."""
    health: str = ""
    """`ok`, or the state that the vendor's tool reports; empty if it is unknown."""
    busy: bool | None = None
    """Whether another process uses it; None if it is unknown."""
    bus: str = ""
    """PCI address with its domain: 0000:19:00.0."""
    cpus: tuple[int, ...] = ()
    """Logical CPUs near it; empty if the machine does not report them."""
    architecture: str = ""
    """The vendor's name of the target that kernels are compiled for: gaudi2, ascend910b, 9.0, gfx942, v5p, trn2."""
    path: str = ""
    """Its device file: /dev/accel/accel0."""
    card: int | None = None
    """Of a die: the card that it is part of (the NPU of an A3, the package of an MI250)."""
    uuid: str = ""
    """The identifier that the vendor's runtime accepts instead of the number: GPU-…, MIG-…."""
    cores: int = 1
    """Number of vLLM ranks it can hold: the logical NeuronCores of a Neuron device, otherwise 1."""


class Link(NamedTuple):
    """How two devices are connected, as the vendor names it: NV18, XGMI, HCCS, SYS."""

    first: int
    second: int
    kind: str


class ProbeResult(NamedTuple):
    """What the probe of an accelerator returns."""

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    """Each pair once, the lower number first."""
    versions: Mapping[str, str] = MappingProxyType({})
    """Version of the driver, firmware, tool, toolkit …, as digits and dots where the vendor writes them this way."""
    knobs: Mapping[str, str] = MappingProxyType({})
    """Settings of the driver by a short name, as text. They are added to `Facts.kernel`."""


TOOL_OUTPUT = "the output of the tool"
"""What is expected of a tool that ran and failed: nothing has to be mounted or made readable for it."""


class Failure(NamedTuple):
    """A path or command that should be readable and is not. It becomes a FAIL finding, never a default value."""

    where: str
    """The path or the command."""
    found: str
    """The errno and its text, the last line of the command, or the text that could not be parsed."""
    expected: str


class Facts(NamedTuple):
    """Everything that the probes found. Findings and decisions are made from it elsewhere."""

    accelerator: str
    processor: Processor
    cpus: tuple[Cpu, ...]
    """Online logical CPUs that this process may run on, by its affinity and cpuset."""
    nodes: tuple[Node, ...]
    """Online NUMA nodes that this process may allocate memory from."""
    memory: Memory
    cgroup: Cgroup
    limits: Limits
    mounts: Mapping[str, Mount]
    """By role: cache, shm, tmp."""
    kernel: Mapping[str, str]
    """Kernel settings by a short name, as text: governor, transparent_hugepage, swappiness, numa_balancing …"""
    devices: tuple[Device, ...]
    user: tuple[int, int]
    """uid, gid."""
    failures: tuple[Failure, ...]
    files: Mapping[str, bool] = MappingProxyType({})
    """Preload libraries of the image by name, such as tcmalloc: whether the file exists."""
    links: tuple[Link, ...] = ()
    """Links between devices."""
    versions: Mapping[str, str] = MappingProxyType({})
    """Versions of the accelerator's driver, firmware and tools."""
    capabilities: tuple[str, ...] = ()
    """Capabilities that accelerators may need and the container has, without CAP_. In Docker only root can use them."""
    grants: Mapping[str, bool] = MappingProxyType({})
    """Device files and mounts that the image needs, by path or pattern: whether each exists and can be opened."""
    refused: Mapping[str, str] = MappingProxyType({})
    """Device files that exist and this user may not open → mode, owner and group: `crw-rw---- 0:110`."""


class Notice(NamedTuple):
    """A finding as code creates it: its id and what was found. `findings.tell` adds the text from the profile."""

    id: str
    found: str
    expected: str
    values: Mapping[str, str] = MappingProxyType({})
    """Values for the names in braces of its text, remediation and source."""


class Finding(NamedTuple):
    """The outcome of one check."""

    id: str
    severity: str
    """PASS, INFO, WARN, FAIL, or UNKNOWN if the fact could not be read."""
    text: str
    found: str
    expected: str
    remediation: str
    scope: str
    """Where it is changed: host or container."""
    source: str
    read: str = ""
    """The file or tool that it is read from in a container."""
    fix: Mapping[str, Any] = MappingProxyType({})
    """How to fix it on the host (Fix in drydock/model/checks.py); empty if nothing is wrong or there is no
    automatic fix."""
    stops: bool = False
    """Whether the server does not start, or ends, with it."""


class Reason(NamedTuple):
    """Why a setting has its value; `setting` is the flag (`--dtype`) or variable (`OMP_NUM_THREADS`)."""

    setting: str
    value: str
    origin: str
    """One of settings_precedence.ORDER."""
    because: str
    instead: tuple[str, ...] = ()
    """Why the alternatives were not chosen, one sentence each."""


class Value(NamedTuple):
    """The value of a setting and its reason; `instead` gives one sentence for each rejected alternative."""

    value: str | bool
    because: str
    instead: tuple[str, ...] = ()


class Entry(NamedTuple):
    """A folder of compiled code in the cache. It is filled, copied and quarantined as a whole."""

    name: str
    """Name of the folder."""
    factors: Mapping[str, str]
    """What must be equal for a start to use it."""
    carry: tuple[str, ...] = ()
    """Its subfolders that are valid for any plan: a new entry copies them from the nearest one."""


class CachePlan(NamedTuple):
    """Where a start writes compiled code, and what it can reuse."""

    volume: str = ""
    """Where entries are kept between starts."""
    work: str = ""
    """Where vLLM works: the volume, or a private folder."""
    why: str = ""
    """Why `work` is not the volume; empty when it is."""
    entries: tuple[Entry, ...] = ()
    """The entry of the device first, then the entry of the plan."""
    folders: Mapping[str, str] = MappingProxyType({})
    """Variable → the folder that it is set to."""
    sources: tuple[str, ...] = ()
    """Other cache folders, read-only or on network storage, to copy entries from (DRYDOCK_CACHE_FROM)."""
    publish: bool = False
    """Whether new files in `work` are copied to the volume, because the volume is too slow to work on."""


class Use(NamedTuple):
    """How the plan uses the memory of one device, or of one NUMA node if the host has no devices. Sizes in bytes."""

    number: int
    """The device's number, or the node's."""
    engine: int
    """The data-parallel engine that runs on it, from 0."""
    total: int
    weights: int
    other: int
    """Runtime, graphs, communication buffers and activations."""
    cache: int
    """The KV cache."""
    length: int = 0
    """Tokens of the longest sequence that its engine serves; 0 if only vLLM knows."""
    tokens: int = 0
    """Tokens that its engine's KV cache holds in such sequences; 0 if only vLLM knows."""


class RankPlan(NamedTuple):
    """What one of several hosts runs."""

    rank: int
    """The host's number, from 0. The host of rank 0 serves clients."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """What is added to the inherited environment."""
    before: tuple[tuple[str, ...], ...] = ()
    """Commands that run to their end before `argv` is started: Ray's head."""


class Group(NamedTuple):
    """The hosts that serve together, of which this one has `rank`."""

    rank: int
    hosts: int
    address: str
    """Of rank 0."""
    headless: bool = False
    """Whether this host's vLLM has no server."""
    ray: bool = False
    """Whether Ray starts the ranks."""
    address_given: bool = True
    """Whether the user named rank 0's address; if not, `address` stands for it."""


class ServePlan(NamedTuple):
    """Everything that `serve` does. `env` holds only what is added to the inherited environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    reasons: tuple[Reason, ...]
    findings: tuple[Finding, ...]
    model: str
    host: str
    """Address that vLLM binds to, as the user gave it."""
    port: int
    limits: Mapping[str, int] = MappingProxyType({})
    """Soft resource limits to set before vLLM starts, by their names in `resource`; -1 means unlimited."""
    cache: CachePlan = CachePlan()
    files: Mapping[str, str] = MappingProxyType({})
    """Path → text of files that the environment refers to. They are written before vLLM starts."""
    uses: tuple[Use, ...] = ()
    """The devices that serve, in the order of vLLM's ranks; empty if only vLLM knows them."""
    stall: float = 0.0
    """Seconds without progress until a server is not ready; 0 does not look."""
    ranks: tuple[RankPlan, ...] = ()
    """The command of each of several hosts, by rank; empty for one host."""
    before: tuple[tuple[str, ...], ...] = ()
    """Commands that run to their end before vLLM is started."""
    group: Group | None = None
    """The place of this host among several; None on one host."""


def to_json(value: Any) -> Any:
    """Convert records into plain JSON values, field by field. Tuples become lists."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {field: to_json(item) for field, item in zip(value._fields, value, strict=True)}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value
