"""Kernel settings of a host, read from /sys and /proc as a container sees them."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import basename, dirname

from entrypoints.core.parse import parse_bracketed, parse_fields, parse_kernel_words, parse_line, parse_number
from entrypoints.facts.probes.common.system import bounding_set
from entrypoints.host.host import Host

_CPU = "/sys/devices/system/cpu"
_NET = "/sys/class/net"
_SYS_NICE = 23
"""Bit of CAP_SYS_NICE, from linux/capability.h."""

CLOCK = "/clock"
"""File of a recorded host: the time of day, in Unix seconds."""

COMMAND_LINE = "/proc/cmdline"
"""A recorded host has only the words of BOOT in this file, because the others may name disks and secrets."""

BOOT = {"init_on_alloc": "init_on_alloc", "pci": "boot_pci"}
"""Word of the kernel command line → its short name. Settings that /sys also shows are read from /sys."""

SETTINGS = {
    "turbo_disabled": (f"{_CPU}/intel_pstate/no_turbo", parse_line),
    "boost": (f"{_CPU}/cpufreq/boost", parse_line),
    "smt": (f"{_CPU}/smt/control", parse_line),
    "transparent_hugepage": ("/sys/kernel/mm/transparent_hugepage/enabled", parse_bracketed),
    "swappiness": ("/proc/sys/vm/swappiness", parse_line),
    "overcommit_memory": ("/proc/sys/vm/overcommit_memory", parse_line),
    "nr_hugepages": ("/proc/sys/vm/nr_hugepages", parse_line),
    "numa_balancing": ("/proc/sys/kernel/numa_balancing", parse_line),
    "sched_migration_cost_ns": ("/proc/sys/kernel/sched_migration_cost_ns", parse_line),
    "iommu_domain": ("/sys/kernel/iommu_groups/0/type", parse_line),
    "idle_state2_disabled": (f"{_CPU}/cpu0/cpuidle/state2/disable", parse_line),
    "intel_pstate": (f"{_CPU}/intel_pstate/status", parse_line),
    "intel_idle_max_cstate": ("/sys/module/intel_idle/parameters/max_cstate", parse_line),
    "clocksource": ("/sys/devices/system/clocksource/clocksource0/current_clocksource", parse_line),
    "release": ("/proc/sys/kernel/osrelease", parse_line),
    "machine_type": ("/sys/devices/virtual/dmi/id/product_name", parse_line),
}

_SECCOMP = {"0": "disabled", "1": "strict", "2": "filter"}


def read_settings(host: Host, status: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that this kernel has, as text. `status` is /proc/self/status."""
    settings = {name: host.parsed(path, parse, "") for name, (path, parse) in SETTINGS.items()}
    settings |= _read_idle_state(host) | _huge_pages(host) | _read_boot_words(host)
    settings["seccomp"] = _SECCOMP.get(status.get("seccomp", ""), "")
    settings["sys_nice"] = _sys_nice(bounding_set(status))
    settings["interfaces"] = " ".join(list_running_interfaces(host))
    settings["rdma_devices"] = " ".join(basename(path) for path in host.glob("/sys/class/infiniband/*"))
    settings["clock"] = _read_clock(host)
    return {name: value for name, value in settings.items() if value}


def _sys_nice(capabilities: str) -> str:
    try:
        return "yes" if int(capabilities, 16) >> _SYS_NICE & 1 else "no"
    except ValueError:
        return ""


def _read_idle_state(host: Host) -> dict[str, str]:
    """Return the deepest idle state that is enabled on the first CPU, and its wake-up time in microseconds.

    Source: kernel documentation, cpuidle (`disable`).
    """
    settings: dict[str, str] = {}
    for path in host.glob(f"{_CPU}/cpu0/cpuidle/state[0-9]*/name"):
        state = dirname(path)
        if host.parsed(f"{state}/disable", parse_line, "0") == "0":
            settings["deepest_idle"] = host.parsed(path, parse_line, "")
            settings["idle_latency_us"] = host.parsed(f"{state}/latency", parse_line, "")
    return settings


def _huge_pages(host: Host) -> dict[str, str]:
    """Return the number of huge pages that are neither used nor reserved, and the page size in KiB."""
    fields = parse_fields(host.texts.get("/proc/meminfo", ""))  # system.read_memory has read it
    try:
        free = parse_number(fields["hugepages_free"]) - parse_number(fields["hugepages_rsvd"])
        return {"hugepages_idle": str(max(0, free)), "hugepage_kib": fields["hugepagesize"].removesuffix(" kB")}
    except (KeyError, ValueError):  # a kernel without huge pages
        return {}


def _read_boot_words(host: Host) -> dict[str, str]:
    """Return the words of BOOT in the kernel command line; `default` for a word that is not there."""
    text = host.lookup(COMMAND_LINE, _known_words)
    if text is None:
        return {}
    words = parse_kernel_words(text, tuple(BOOT))
    return {knob: words.get(word) or "default" for word, knob in BOOT.items()}


def _known_words(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        words = parse_kernel_words(file.read(), tuple(BOOT))
    return "".join(f"{name}={value}\n" for name, value in words.items())


def list_running_interfaces(host: Host) -> tuple[str, ...]:
    """Return the network interfaces that are up: the physical ones, or if there are none, all except loopback."""
    paths = [dirname(path) for path in host.glob(f"{_NET}/*/operstate")]
    states = {path: host.parsed(f"{path}/operstate", parse_line, "") for path in paths}
    running = [path for path, state in states.items() if state == "up"]
    physical = [path for path in running if host.exists(f"{path}/device")]
    return tuple(basename(path) for path in physical or running if not path.endswith("/lo"))


def _read_clock(host: Host) -> str:
    """Return the time of day in Unix seconds; empty if a recorded host does not have it."""
    import time

    return (host.lookup(CLOCK, lambda _path: str(int(time.time()))) or "").strip()
