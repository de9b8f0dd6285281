"""Memory, cgroup, limits, capabilities and folders of any host."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from entrypoints.core.parse import (
    convert_cpu_quota,
    parse_cgroup_limit,
    parse_cgroup_paths,
    parse_cpu_max,
    parse_hierarchical_limit,
    parse_limits,
    parse_meminfo,
    parse_number,
    parse_untrusted_json,
)
from entrypoints.core.records import Cgroup, Limits, Memory, Mount
from entrypoints.host.host import Host

MACHINE = "/machine"
"""File of a recorded host: the architecture, as `uname -m` prints it."""
MOUNTS = "/mounts.json"
"""File of a recorded host that is a folder: statvfs results by role."""
_BYTES_AT_MOST = 1 << 63

_CGROUP = "/sys/fs/cgroup"

if TYPE_CHECKING:
    from typing import TypeVar

    N = TypeVar("N", int, float)


def read_memory(host: Host) -> Memory:
    """Read /proc/meminfo. Kernels before 3.14 do not report available memory, so free and cached memory is used."""
    sizes: dict[str, int] = host.parsed("/proc/meminfo", parse_meminfo, {})
    if "/proc/meminfo" not in host.texts:
        host.fail("/proc/meminfo", "no such file", "the memory's size")
    free = sizes.get("MemFree", 0) + sizes.get("Cached", 0)
    return Memory(
        sizes.get("MemTotal", 0),
        sizes.get("MemAvailable", free),
        sizes.get("SwapTotal", 0),
        sizes.get("SwapFree", 0),
    )


def read_limits(host: Host, status: Mapping[str, str]) -> Limits:
    """Return the soft limits of this process, and the hard limits of two of them."""
    limits: dict[str, tuple[int | None, int | None]] = host.parsed("/proc/self/limits", parse_limits, {})
    nothing = (None, 0)
    nofile, memlock = (limits.get(name, nothing) for name in ("Max open files", "Max locked memory"))
    nproc = None if _may_exceed_processes(host, status) else limits.get("Max processes", nothing)[0]
    return Limits(nofile[0], memlock[0], nproc, nofile[1], memlock[1])


def _may_exceed_processes(host: Host, status: Mapping[str, str]) -> bool:
    """Return whether the kernel ignores RLIMIT_NPROC: for root and for two capabilities, of the host's user namespace.

    Source: Linux kernel/fork.c, copy_process. An older recorded host lacks uid_map: engines map users only if asked to.
    """
    is_mapped = host.parsed("/proc/self/uid_map", str.split, ["0", "0"])[:2] != ["0", "0"]
    is_root = status.get("uid", "").split()[:1] == ["0"]
    effective = _name_capabilities(status.get("capeff", ""))
    return not is_mapped and (is_root or not {"SYS_ADMIN", "SYS_RESOURCE"}.isdisjoint(effective))


CAPABILITIES = {14: "IPC_LOCK", 19: "SYS_PTRACE", 21: "SYS_ADMIN", 23: "SYS_NICE", 24: "SYS_RESOURCE"}
"""Bit → name of the capabilities that an accelerator may need, from linux/capability.h."""


def read_capabilities(status: Mapping[str, str]) -> tuple[str, ...]:
    """Return the capabilities among CAPABILITIES that the container has, sorted."""
    return _name_capabilities(bounding_set(status))


def _name_capabilities(bits_of_set: str) -> tuple[str, ...]:
    try:
        bits = int(bits_of_set, 16)
    except ValueError:
        return ()
    return tuple(sorted(name for bit, name in CAPABILITIES.items() if bits >> bit & 1))


def bounding_set(status: Mapping[str, str]) -> str:
    """Return the bounding set of capabilities, in hexadecimal.

    Docker makes capabilities effective only for root (moby/moby#8460), but its seccomp filter uses this set for all
    users (moby/profiles, seccomp_linux.go).
    """
    return status.get("capbnd", status.get("capeff", ""))


# --- cgroup ---------------------------------------------------------------------------------------------------------


def read_cgroup(host: Host) -> Cgroup:
    """Return the limits of the container: for each the smallest from its cgroup up to the root."""
    paths: dict[str, str] = host.parsed("/proc/self/cgroup", parse_cgroup_paths, {})
    if host.exists(f"{_CGROUP}/cgroup.controllers"):
        return _version_2(host, paths.get("", "/"))
    return _version_1(host, paths)


def _version_2(host: Host, path: str) -> Cgroup:
    folders = tuple(_CGROUP + folder for folder in list_cgroup_ancestors(path))
    names = ("memory.max", "memory.high")  # above memory.high the kernel does not kill, but stops the processes
    limit, used_bytes = _read_memory_limit(host, folders, names, "memory.current")
    quotas = (host.parsed(f"{folder}/cpu.max", parse_cpu_max, None) for folder in folders)
    return Cgroup(2, limit, used_bytes, find_smallest_limit(quotas), _read_pids_limit(host, folders))


def _version_1(host: Host, paths: Mapping[str, str]) -> Cgroup:
    folders = _list_controller_folders(host, paths, "memory")
    limit, used_bytes = _read_memory_limit(host, folders, ("memory.limit_in_bytes",), "memory.usage_in_bytes")
    hidden = (host.parsed(f"{folder}/memory.stat", parse_hierarchical_limit, None) for folder in folders[:1])
    quotas = (_quota_1(host, folder) for folder in _list_controller_folders(host, paths, "cpu"))
    return Cgroup(
        1,
        find_smallest_limit((limit, *hidden)),
        used_bytes,
        find_smallest_limit(quotas),
        _read_pids_limit(host, _list_controller_folders(host, paths, "pids")),
    )


def _list_controller_folders(host: Host, paths: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the existing folders of a v1 controller, the process's own first.

    Several controllers may be mounted together (`cpu,cpuacct`).
    """
    for controllers, path in paths.items():
        if name in controllers.split(","):
            mounts = (f"{_CGROUP}/{controllers}", f"{_CGROUP}/{name}")
            mount = next((folder for folder in mounts if host.exists(folder)), None)
            folders = [mount + folder for folder in list_cgroup_ancestors(path)] if mount else []
            return tuple(folder for folder in folders if host.exists(folder))
    return ()


def list_cgroup_ancestors(path: str) -> tuple[str, ...]:
    """Return the path of a cgroup, then its ancestors up to the root, which is the empty string.

    For a path outside the container's view (`/../..`) return only the root.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        return ("",)
    return tuple("".join(f"/{part}" for part in parts[:count]) for count in range(len(parts), -1, -1))


def _read_memory_limit(
    host: Host, folders: tuple[str, ...], limit_names: tuple[str, ...], used_name: str
) -> tuple[int | None, int]:
    """Return the smallest limit and the memory used in that cgroup. Without a limit, use the process's own cgroup."""
    files = [(f"{folder}/{name}", folder) for folder in folders for name in limit_names]
    folder_limits = [(host.parsed(file, parse_cgroup_limit, None), folder) for file, folder in files]
    limited = [(limit, folder) for limit, folder in folder_limits if limit is not None]
    limit, holder = min(limited) if limited else (None, folders[0] if folders else _CGROUP)
    return limit, host.parsed(f"{holder}/{used_name}", parse_number, 0)


def _quota_1(host: Host, folder: str) -> float | None:
    period = host.text(f"{folder}/cpu.cfs_period_us")
    if period is None:
        return None
    return host.parsed(f"{folder}/cpu.cfs_quota_us", lambda quota: convert_cpu_quota(quota, period), None)


def _read_pids_limit(host: Host, folders: tuple[str, ...]) -> int | None:
    return find_smallest_limit(host.parsed(f"{folder}/pids.max", parse_cgroup_limit, None) for folder in folders)


def find_smallest_limit(limits: Iterable[N | None]) -> N | None:
    """Return the smallest limit, ignoring None (unlimited); None if all are None."""
    return min((limit for limit in limits if limit is not None), default=None)


# --- folders --------------------------------------------------------------------------------------------------------


def read_mounts(host: Host, env: Mapping[str, str]) -> dict[str, Mount]:
    """Return the folders that serving needs: cache, shared memory, temporary files, profiles if any."""
    if not host.live:
        return host.part(MOUNTS, parse_mounts, {})
    folders = {"cache": env.get("DRYDOCK_CACHE_DIR") or "/cache", "shm": "/dev/shm", "tmp": env.get("TMPDIR") or "/tmp"}  # noqa: S108 - only inspected, not written to
    profiles = env.get("VLLM_TORCH_PROFILER_DIR")
    if profiles:
        folders["profiles"] = _find_existing_folder(profiles)
    return {role: _read_mount(host, path) for role, path in folders.items()}


def _find_existing_folder(path: str) -> str:
    """Return a folder, or the nearest one above it that exists, in which it would be made."""
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _read_mount(host: Host, path: str) -> Mount:
    try:
        figures = os.statvfs(path)
    except (FileNotFoundError, NotADirectoryError):
        return Mount(path, exists=False, writable=False, free=0, total=0, filesystem="")
    except OSError as error:
        host.fail(path, f"{error.strerror} (errno {error.errno})", "a readable folder")
        return Mount(path, exists=True, writable=False, free=0, total=0, filesystem="")
    writable = os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)
    free, total = figures.f_bavail * figures.f_frsize, figures.f_blocks * figures.f_frsize
    return Mount(path, exists=True, writable=writable, free=free, total=total, filesystem=_read_filesystem(path))


def _read_filesystem(path: str) -> str:
    """Return the type of the file system of a path, and nothing else, because mount tables may contain credentials."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
            entries = [line.split(" - ", 1) for line in table]
    except OSError:
        return ""  # only shown to the user
    best = ("", "")
    for mount_fields, right in (entry for entry in entries if len(entry) == 2):  # noqa: PLR2004 - the two halves of a line
        point = mount_fields.split(" ")[4]
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            best = (point, right.split(" ", 1)[0])
    return best[1]


def parse_mounts(text: str) -> dict[str, Mount]:
    """Parse mounts.json of a recorded host that is a folder. Raises ValueError."""
    try:
        return to_mounts(parse_untrusted_json(text))
    except ValueError as error:
        raise ValueError('{"cache": {"path": …, "exists": …, "writable": …, "free": …, …}}') from error


def to_mounts(value: Any) -> dict[str, Mount]:
    """Convert JSON values into mounts by role. Raises ValueError that names the invalid role."""
    if not isinstance(value, dict):
        raise ValueError(f"found {type(value).__name__}, expected an object")  # noqa: TRY004 - as for any wrong value
    return {role: _recorded_mount(role, fields) for role, fields in value.items()}


def _recorded_mount(role: str, fields: Any) -> Mount:
    mount = {"path": "", **fields} if isinstance(fields, dict) else {}
    kinds = {"path": str, "exists": bool, "writable": bool, "free": int, "total": int, "filesystem": str}
    if {name: type(value) for name, value in mount.items()} != kinds:
        raise ValueError(f"{role[:80]!r}: expected {', '.join(kinds)}")
    if not all(0 <= mount[name] <= _BYTES_AT_MOST for name in ("free", "total")):
        raise ValueError(f"{role[:80]!r}: expected free and total from 0 to {_BYTES_AT_MOST} bytes")
    return Mount(**mount)
