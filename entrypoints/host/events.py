"""How often the kernel enforced this container's limits of memory and processes. IO.

Sources: the kernel's cgroup-v2.rst (memory.events, pids.events) and cgroup-v1/memory.rst (memory.oom_control).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from entrypoints.core.folders import read_regular
from entrypoints.core.parse import is_number
from entrypoints.host.source import READ_AT_MOST


class LimitEvents(NamedTuple):
    """Counts since the container was created; 0 if the kernel does not tell."""

    killed: int = 0
    """Processes that the kernel's OOM killer ended."""
    refused: int = 0
    """Processes and threads that the pids limit refused."""


def limit_events(root: str = "") -> LimitEvents:
    """Read the counts of this process's cgroup, version 2 or 1."""
    unified, memory, pids = _read_cgroup_paths(root)
    mounts = f"{root}/sys/fs/cgroup"
    return LimitEvents(
        killed=_read_event_count("oom_kill", _list_event_files(mounts, unified, "memory.events"))
        or _read_event_count("oom_kill", _list_event_files(f"{mounts}/memory", memory, "memory.oom_control")),
        refused=_read_event_count("max", _list_event_files(mounts, unified, "pids.events"))
        or _read_event_count("max", _list_event_files(f"{mounts}/pids", pids, "pids.events")),
    )


def explain_limit_events(before: LimitEvents, after: LimitEvents) -> str:
    """Return which limit was enforced between two readings; empty if none was. Pure."""
    killed, refused = after.killed - before.killed, after.refused - before.refused
    if killed > 0:
        return (
            f"the kernel's OOM killer ended {killed} process{'es' if killed > 1 else ''} of this container "
            "(oom_kill in memory.events): raise its memory limit, or lower --max-model-len or --max-num-seqs"
        )
    if refused > 0:
        return (
            f"the container's limit of processes and threads was reached, {refused} refused "
            "(max in pids.events): raise docker's --pids-limit, or Kubernetes' podPidsLimit"
        )
    return ""


def _read_cgroup_paths(root: str) -> tuple[str, str, str]:
    """Return this process's paths in the unified hierarchy and in version 1's `memory` and `pids`."""
    paths = {"": "/", "memory": "/", "pids": "/"}
    for line in _read_text_or_empty(f"{root}/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths[""], paths["memory"], paths["pids"]


def _list_event_files(mount: str, path: str, name: str) -> Iterator[str]:
    """Yield where a file may be: a container without a cgroup namespace sees the host's path and its own mount."""
    yield f"{mount}{path.rstrip('/')}/{name}"
    yield f"{mount}/{name}"


def _read_event_count(key: str, places: Iterator[str]) -> int:
    for place in places:
        words = [line.split() for line in _read_text_or_empty(place).splitlines()]
        for pair in words:
            if pair[:1] == [key] and is_number(pair[-1]):
                return int(pair[-1])
    return 0


def _read_text_or_empty(path: str) -> str:
    try:
        return read_regular(path, READ_AT_MOST).decode(errors="replace")
    except OSError:
        return ""
