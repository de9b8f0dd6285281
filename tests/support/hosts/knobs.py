"""The settings of a host as files: tuned, and each of them wrong. Pure.

What a kernel would show after a value was written, or after a restart with another command line, is here as well: that
is what a recorded host cannot do by itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.hosts.trees import GIB, Tree, meminfo

CPU = "sys/devices/system/cpu"


class Knob(NamedTuple):
    """One file, or one made anew, with the text that is as every vendor wants it, and one that is not."""

    path: str
    right: str
    wrong: str


KNOBS = {
    "kernel.acs_redirects": Knob("sys/class/pci_bus/0000:17/device/config", "0x0011", "0x001d"),
    "kernel.boost": Knob(f"{CPU}/cpufreq/boost", "1", "0"),
    "kernel.boot_pci": Knob("proc/cmdline", "pci=realloc=off init_on_alloc=0", "init_on_alloc=0"),
    "kernel.clock": Knob("clock", "1795219200", "946684800"),
    "kernel.clocksource": Knob("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc", "hpet"),
    "kernel.deepest_idle": Knob(f"{CPU}/cpu0/cpuidle/state3/disable", "1", "0"),
    "kernel.governor": Knob(f"{CPU}/cpu0/cpufreq/scaling_governor", "performance", "powersave"),
    "kernel.hccn_unaddressed": Knob("etc/hccn.conf", "\n".join(f"address_{chip}" for chip in range(16)), "address_0"),
    "kernel.idle_latency_us": Knob(f"{CPU}/cpu0/cpuidle/state3/disable", "1", "0"),
    "kernel.idle_state2_disabled": Knob(f"{CPU}/cpu0/cpuidle/state2/disable", "1", "0"),
    "kernel.init_on_alloc": Knob("proc/cmdline", "pci=realloc=off init_on_alloc=0", "pci=realloc=off"),
    "kernel.intel_idle_max_cstate": Knob("sys/module/intel_idle/parameters/max_cstate", "0", "9"),
    "kernel.intel_pstate": Knob(f"{CPU}/intel_pstate/status", "active", "off"),
    "kernel.interfaces": Knob("sys/class/net/eth0/operstate", "up", "down"),
    "kernel.iommu_domain": Knob("sys/kernel/iommu_groups/0/type", "identity", "DMA-FQ"),
    "kernel.nr_hugepages": Knob("proc/sys/vm/nr_hugepages", "15000", "0"),
    "kernel.numa_balancing": Knob("proc/sys/kernel/numa_balancing", "0", "1"),
    "kernel.overcommit_memory": Knob("proc/sys/vm/overcommit_memory", "0", "2"),
    "kernel.rdma_devices": Knob("sys/class/infiniband/mlx5_0", "", ""),
    "kernel.sched_migration_cost_ns": Knob("proc/sys/kernel/sched_migration_cost_ns", "50000", "500000"),
    "kernel.smt": Knob(f"{CPU}/smt/control", "off", "on"),
    "kernel.swappiness": Knob("proc/sys/vm/swappiness", "0", "100"),
    "kernel.transparent_hugepage": Knob(
        "sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never", "always madvise [never]"
    ),
    "kernel.turbo_disabled": Knob(f"{CPU}/intel_pstate/no_turbo", "0", "1"),
    "derived.hugepages_idle_percent": Knob("proc/meminfo", "", ""),
    "derived.swap_used_mib": Knob("proc/meminfo", "", ""),
}
"""Fact of a check → the file that decides it."""


def tuned(tree: Tree) -> Tree:
    """Return a host of which every knob is as every vendor wants it."""
    files = {knob.path: f"{knob.right}\n" for knob in KNOBS.values()}
    return tree | _idle_states() | files | {"proc/meminfo": meminfo(512 * GIB, 480 * GIB, 8 * GIB) + _huge_pages(0)}


def _huge_pages(idle: int) -> str:
    return f"HugePages_Total: {idle}\nHugePages_Free: {idle}\nHugePages_Rsvd: 0\nHugepagesize: 2048 kB\n"


def _idle_states() -> Tree:
    """Make the sleep states of a Xeon, by name and microseconds."""
    states = (("POLL", 0), ("C1", 1), ("C1E", 4), ("C6", 170))
    tree: Tree = {}
    for number, (name, latency) in enumerate(states):
        folder = f"{CPU}/cpu0/cpuidle/state{number}"
        tree |= {f"{folder}/name": f"{name}\n", f"{folder}/latency": f"{latency}\n", f"{folder}/disable": "0\n"}
    return tree


def wrong(tree: Tree, fact: str, value: str = "") -> dict[str, str | None]:
    """Return the files of a host that make one setting wrong; None for one that is to go."""
    knob, text = KNOBS[fact], tree["proc/meminfo"]
    if fact == "derived.swap_used_mib":
        return {knob.path: re.sub(r"SwapFree: *\d+", "SwapFree: 4096", text)}
    if fact == "derived.hugepages_idle_percent":
        return {knob.path: text.replace(_huge_pages(0), _huge_pages(60_000))}
    return {knob.path: f"{value or knob.wrong}\n" if value or knob.wrong else None}


# --- what a kernel does ---------------------------------------------------------------------------------------------

_CHOICES = {"sys/kernel/mm/transparent_hugepage/enabled": ("always", "madvise", "never")}
_PARAMETERS = {
    "iommu=pt": {"sys/kernel/iommu_groups/0/type": "identity\n"},
    "intel_idle.max_cstate=0": {"sys/module/intel_idle/parameters/max_cstate": "0\n"},
}
"""Word of the command line → what /sys says after a restart with it."""


def as_shown(tree: Tree) -> Tree:
    """Return the host as its kernel would show what was written: of choices the current one in brackets."""
    files = {
        path: " ".join(f"[{choice}]" if choice == tree[path].strip() else choice for choice in choices) + "\n"
        for path, choices in _CHOICES.items()
        if tree.get(path, "").strip() in choices
    }
    return tree | files


def restarted(tree: Tree) -> Tree:
    """Return the host after a restart with the words that GRUB's files add to the command line."""
    grub = "".join(text for path, text in tree.items() if path.startswith("etc/default/grub"))
    words = re.findall(r'\$GRUB_CMDLINE_LINUX_DEFAULT ([^"]+)"', grub)
    after = tree | {"proc/cmdline": " ".join([tree.get("proc/cmdline", "").strip(), *words]) + "\n"}
    for word in words:
        after |= _PARAMETERS.get(word, {})
    return after
