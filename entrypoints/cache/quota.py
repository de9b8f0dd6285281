"""Limits the size of the compile caches, and removes entries that exceed it. IO, except `parse_quota`.

Downloads do not count: the volume's owner decides which models it has.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping

from entrypoints.cache.entries import COMPILED, QUARANTINE, is_in_use, list_entries
from entrypoints.cache.plan import ROOM
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.folders import measure_folder, remove_folder
from entrypoints.core.parse import is_number

QUOTA = "DRYDOCK_CACHE_QUOTA"
_USUAL = "50%"
"""The default share of the volume; the rest is for models."""
_SET_ASIDE = 2
"""Quarantined entries that are kept for debugging."""
_DAY = 86400
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_quota(text: str, total: int) -> int:
    """Return bytes from 50G, 800M or a share of the volume, 25%. Raises USAGE."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%|[KMGT]?)(?:i?B)?", text.strip())
    if not match:
        raise EntrypointError(USAGE, f"{QUOTA}={text}: expected a size or a share, such as 50G or 25%")
    number = float(match[1])
    return int(number * total / 100) if match[2] == "%" else int(number * _UNITS[match[2]])


def make_room(root: str, env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Remove old quarantined entries, then the least recently used ones, until the quota and ROOM are satisfied."""
    try:
        figures = os.statvfs(root)
        allowed = parse_quota(env.get(QUOTA) or _USUAL, figures.f_blocks * figures.f_frsize)
    except OSError:
        return
    for name in (*_list_old_entries(f"{root}/{QUARANTINE}"), *_list_unfinished_copies(f"{root}/{COMPILED}")):
        remove_folder(name)
    entries = [
        (entry.path, entry.manifest.get("bytes") or measure_folder(entry.path)[1]) for entry in list_entries(root)
    ]
    used_bytes, short = sum(bytes_ for _, bytes_ in entries), ROOM - figures.f_bavail * figures.f_frsize
    excess = max(used_bytes - allowed, short if short <= used_bytes else 0)
    for path, bytes_ in reversed(entries):
        if excess <= 0:
            return
        if not is_in_use(path) and _evict_entry(root, path):
            excess -= bytes_
            say(f"cache: removed {path}, the least recently used: the quota is {allowed / 1e9:.1f} GB ({QUOTA})")


def _evict_entry(root: str, path: str) -> bool:
    """Remove an entry; tell whether it was removed. It is renamed first, so no server opens an incomplete entry."""
    going = f"{root}/{COMPILED}/.{os.path.basename(path)}.going"
    try:
        os.rename(path, going)
    except OSError:  # another process removes it, or the volume is read-only
        return False
    remove_folder(going)
    return True


def _list_old_entries(folder: str) -> tuple[str, ...]:
    """Return all quarantined entries except the newest; their names end with the time."""
    try:
        names = sorted(os.listdir(folder), key=_read_time_suffix)
    except OSError:
        return ()
    return tuple(f"{folder}/{name}" for name in names[:-_SET_ASIDE])


def _read_time_suffix(name: str) -> int:
    """Return the milliseconds at the end of a name; 0 if it has none."""
    end = name.rpartition(".")[2]
    return int(end) if is_number(end) else 0


def _list_unfinished_copies(folder: str) -> tuple[str, ...]:
    """Return unfinished copies that are more than a day old."""
    try:
        copies = [item for item in os.scandir(folder) if item.name.startswith(".")]
        return tuple(item.path for item in copies if item.stat().st_mtime < time.time() - _DAY)
    except OSError:
        return ()
