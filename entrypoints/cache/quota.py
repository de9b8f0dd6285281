"""Limits the size of the compile caches, and removes entries that exceed it. IO, except `parse_quota`.

Downloads do not count: the volume's owner decides which models it has.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping

from entrypoints.cache.entries import COMPILED, QUARANTINE, is_in_use, listed
from entrypoints.cache.plan import ROOM
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.folders import remove, size
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
    for name in (*_old(f"{root}/{QUARANTINE}"), *_unfinished(f"{root}/{COMPILED}")):
        remove(name)
    found = [(each.path, each.kept.get("bytes") or size(each.path)[1]) for each in listed(root)]
    taken, short = sum(bytes_ for _, bytes_ in found), ROOM - figures.f_bavail * figures.f_frsize
    excess = max(taken - allowed, short if short <= taken else 0)
    for path, bytes_ in reversed(found):
        if excess <= 0:
            return
        if not is_in_use(path) and _evict(root, path):
            excess -= bytes_
            say(f"cache: removed {path}, the least recently used: the quota is {allowed / 1e9:.1f} GB ({QUOTA})")


def _evict(root: str, path: str) -> bool:
    """Remove an entry; tell whether it was removed. It is renamed first, so no server opens an incomplete entry."""
    going = f"{root}/{COMPILED}/.{os.path.basename(path)}.going"
    try:
        os.rename(path, going)
    except OSError:  # another process removes it, or the volume is read-only
        return False
    remove(going)
    return True


def _old(folder: str) -> tuple[str, ...]:
    """Return all quarantined entries except the newest; their names end with the time."""
    try:
        names = sorted(os.listdir(folder), key=_when)
    except OSError:
        return ()
    return tuple(f"{folder}/{name}" for name in names[:-_SET_ASIDE])


def _when(name: str) -> int:
    """Return the milliseconds at the end of a name; 0 if it has none."""
    end = name.rpartition(".")[2]
    return int(end) if is_number(end) else 0


def _unfinished(folder: str) -> tuple[str, ...]:
    """Return unfinished copies that are more than a day old."""
    try:
        found = [each for each in os.scandir(folder) if each.name.startswith(".")]
        return tuple(each.path for each in found if each.stat().st_mtime < time.time() - _DAY)
    except OSError:
        return ()
