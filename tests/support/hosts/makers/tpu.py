"""TPU virtual machines, made after what tpu-info printed elsewhere."""

from __future__ import annotations

from tests.support.hosts.pieces import GIB, Tree, commands, mounts, pci, sample, server

SYSTEM = "0x088000"


def chips(device: str, count: int, files: str) -> Tree:
    """Make the chips' PCI functions and device files, half of them near each socket."""
    near = {0: "0-55,112-167", 1: "56-111,168-223"}
    tree: Tree = {f"dev/{files}{number}": "" for number in range(count)}
    for number in range(count):
        node = number * 2 // count
        tree |= pci(f"0000:00:{number + 4:02x}.0", "0x1ae0", device, SYSTEM, node, near[node])
    return tree | ({"dev/vfio/vfio": ""} if files == "vfio/" else {})


def machine(memory: int, *, thp: str = "[always] madvise never", capabilities: str = "0000000001004000") -> Tree:
    """Make a TPU VM: two sockets, huge pages on, and the capabilities and limits that `invoke run` gives."""
    whole = server(56, memory, model="AMD EPYC 9B14")
    nothing = "CapEff:\t0000000000000000"
    given = "".join(f"{name}:\t{capabilities}\n" for name in ("CapEff", "CapBnd"))
    return {
        **whole,
        "proc/self/status": whole["proc/self/status"].replace(f"{nothing}\n", given),
        "proc/self/limits": whole["proc/self/limits"].replace("8388608  ", "unlimited"),
        "mounts.json": mounts(shm=16 * GIB),
        "sys/kernel/mm/transparent_hugepage/enabled": f"{thp}\n",
    }


def held() -> Tree:
    """Four v4 chips that another process holds."""
    return {
        **machine(400 * GIB),
        **chips("0x005e", 4, "accel"),
        **commands({"tpu-info": sample("tpu/tpu-info.v4-4x.txt")}),
        "origin": "tpu-info's README (v4); made up: the machine, PCI addresses, NUMA nodes\n",
    }


def v4() -> Tree:
    """Four free v4 chips, in a container without tpu-info's view of them."""
    return {
        **machine(400 * GIB, thp="always [madvise] never", capabilities="0000000000000000"),
        **chips("0x005e", 4, "accel"),
        "origin": "made up after tpu-info's README and device.py: four v4 chips, no framework, no tool\n",
    }


def v5p() -> Tree:
    """Four idle v5p chips."""
    return {
        **machine(440 * GIB),
        **chips("0x0062", 4, "vfio/"),
        **commands({"tpu-info": sample("tpu/tpu-info.v5p-4x.idle.txt")}),
        "variant": "tpu-vllm0.32\n",
        "origin": "tpu-info of an idle v5p host (public notes); made up: the machine, PCI addresses, NUMA nodes\n",
    }


def v5e() -> Tree:
    """One v5e chip."""
    return {
        **machine(44 * GIB),
        **chips("0x0063", 1, "vfio/"),
        **commands({"tpu-info": sample("tpu/tpu-info.v5e-1x.txt")}),
        "origin": "tpu-info of a v5litepod-1 (public walk-through); made up: the machine, PCI address\n",
    }


def v6e() -> Tree:
    """Eight idle v6e chips."""
    table = sample("tpu/tpu-info.v6e-4x.txt").partition("TPU Runtime Utilization")[0]
    row = "| /dev/vfio/0 | TPU v6e chip | 1       | 1469584 |\n"
    rows = "".join(row.replace("vfio/0", f"vfio/{number}").replace("1469584", "None   ") for number in range(8))
    start = table.partition("| /dev/vfio/0")[0]
    return {
        **machine(1400 * GIB),
        **chips("0x006f", 8, "vfio/"),
        **commands({"tpu-info": start + rows}),
        "origin": "made up after tpu-info's README (v6e): eight chips of a v6e-8, none in use\n",
    }


def trees() -> dict[str, Tree]:
    """Return every made host: name → path → text."""
    return {
        "tpu-v4-4x": v4(),
        "tpu-v4-4x-held": held(),
        "tpu-v5e-1x": v5e(),
        "tpu-v5p-4x": v5p(),
        "tpu-v6e-8x": v6e(),
    }
