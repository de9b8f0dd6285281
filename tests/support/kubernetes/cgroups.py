"""Control groups in which a node's pods are counted, below one folder in each hierarchy of this machine. IO."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import wait_until

PREFIX = "drydock-test-"


def make(name: str) -> None:
    """Create a group in each hierarchy. cpuset's gets this machine's processors: without them, no process may join."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for file_name in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / file_name).exists() and (group / file_name).exists():
                (group / file_name).write_text((hierarchy / file_name).read_text())


def remove(name: str) -> None:
    """Remove a group and those in it, whose processes have been killed."""
    for hierarchy in _hierarchies():
        wait_until(lambda group=hierarchy / name: _removed(group), f"the end of {hierarchy / name}")  # type: ignore[misc]


def _removed(group: Path) -> bool:
    for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        _try_to_remove(folder)
    _try_to_remove(group)
    return not group.exists()


def _try_to_remove(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # a process in it has not ended yet


def _hierarchies() -> Iterator[Path]:
    """Yield where cgroups are mounted: each hierarchy of version 1, and that of version 2, used beside them."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            yield Path(place)
