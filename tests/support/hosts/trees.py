"""Recorded hosts as the files of a folder, to change some of them, and vendors' outputs to put into them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from entrypoints.facts.record import FILE, dump_recorded_host

TESTS = Path(__file__).resolve().parent.parent.parent
HOSTS, SAMPLES = TESTS / "hosts", TESTS / "samples"
GIB = 1 << 30
MIB = 1 << 20
Tree = dict[str, str]
"""Path below the host's root → text."""


def read_recorded_tree(name: str) -> Tree:
    """Return a recorded host as the files of a folder, which `--root` reads as well."""
    host = json.loads((HOSTS / name / FILE).read_text())
    return {
        "machine": host["machine"] + "\n",
        "mounts.json": dump_recorded_host(host["mounts"]),
        "commands.json": dump_recorded_host(host["commands"]),
        **{path[1:]: text for path, text in host["files"].items()},
    }


def write_tree(folder: Path, tree: Mapping[str, str] | Mapping[str, bytes] | Mapping[Path, str]) -> Path:
    """Write files below a folder; return the folder."""
    for path, content in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def read(folder: Path) -> Tree:
    """Read a tree back."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def meminfo(total: int, available: int, swap: int = 0) -> str:
    """Make /proc/meminfo."""
    sizes = {"MemTotal": total, "MemFree": available, "MemAvailable": available, "SwapTotal": swap, "SwapFree": swap}
    return "".join(f"{key + ':':16}{size // 1024:8} kB\n" for key, size in sizes.items())


def pci(bus: str, vendor: str, device: str, kind: str, node: int = -1, cpus: str = "") -> Tree:
    """Make one PCI function, such as "0000:19:00.0", "0x1da3", "0x1020", "0x120000", 0, "0-39"."""
    root = f"sys/bus/pci/devices/{bus}"
    values = {"vendor": vendor, "device": device, "class": kind, "numa_node": str(node), "local_cpulist": cpus}
    return {f"{root}/{name}": f"{value}\n" for name, value in values.items()}


def commands(answers: Mapping[str, str]) -> Tree:
    """Make commands.json: command line → standard output, all with exit code 0."""
    results = {command: {"rc": 0, "stdout": text, "stderr": ""} for command, text in answers.items()}
    return {"commands.json": json.dumps(results, indent=2, sort_keys=True) + "\n"}


def sample(name: str) -> str:
    """Return what a vendor's tool really printed: tests/samples/<accelerator>/<file>, without its header."""
    text = (SAMPLES / name).read_text()
    _, mark, verbatim = text.partition("#---\n")
    return verbatim if mark else text
