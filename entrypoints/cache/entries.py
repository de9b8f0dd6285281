"""Entries of the compile cache: lock, judge, copy, quarantine. IO, except `judge_entry` and `find_nearest_entry`.

An entry is a folder with `entry.json` (what it was made for, whether a server became ready with it) and `lock`. The
server that fills an entry holds an exclusive lock. Servers that use a ready entry hold a shared lock, so it is not
removed. entry.json is replaced atomically and copies are renamed into place, so no incomplete entry looks ready.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.cache.plan import describe_changed_factors
from entrypoints.cache.trust import find_other_owner, find_replacer, find_writer
from entrypoints.core.errors import EntrypointError
from entrypoints.core.folders import copy_folder, make_folder, read_bounded, remove_folder, replace_file
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.core.records import Entry

MANIFEST, LOCK = "entry.json", "lock"
COMPILED, QUARANTINE = "compiled", "quarantine"
_LARGEST = 1 << 53
"""The largest integer that JSON numbers hold exactly; a larger number is not a size."""
_LATEST = 253_402_300_800
"""Seconds until the year 10000, which no date has."""
_MANIFEST_AT_MOST = 1 << 20
"""Bytes of entry.json; a usual one has 2 kB."""
CRASHES = 3
"""Starts in a row that never became ready, after which an entry is quarantined."""

HIT, FILL, REJECT = "hit", "fill", "reject"


class Unusable(Exception):  # noqa: N818 -- not an error: the start uses another folder
    """An entry cannot be used; the text says why."""


class EntryVerdict(NamedTuple):
    """What to do with an entry, and why."""

    kind: str
    """HIT, FILL or REJECT."""
    why: str = ""


class Opened(NamedTuple):
    """An entry as this start uses it."""

    entry: Entry
    path: str
    lock: int
    """File descriptor; -1 without a lock."""
    verdict: EntryVerdict
    manifest: Mapping[str, Any]
    """Its entry.json as found; empty if there is none."""


def judge_entry(manifest: Mapping[str, Any] | None, factors: Mapping[str, str], *, empty: bool) -> EntryVerdict:
    """Judge an entry by its manifest (None if unreadable, empty if there is none). Pure."""
    if manifest is None:
        return EntryVerdict(REJECT, f"its {MANIFEST} cannot be read")
    if not manifest:
        return EntryVerdict(FILL) if empty else EntryVerdict(REJECT, f"it has no {MANIFEST}")
    differences = describe_changed_factors(manifest["factors"], factors)
    if differences:
        return EntryVerdict(REJECT, f"it was made for something else: {differences[0]}")
    if manifest["attempts"] >= CRASHES:
        return EntryVerdict(REJECT, f"{manifest['attempts']} starts in a row never became ready with it")
    return EntryVerdict(HIT) if manifest["ready"] else EntryVerdict(FILL, "an earlier start did not get ready with it")


def read_entry_manifest(path: str) -> dict[str, Any] | None:
    """Read an entry's manifest; empty if there is none, None if it is invalid."""
    try:
        return parse_manifest(read_bounded(f"{path}/{MANIFEST}", _MANIFEST_AT_MOST).decode())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError):
        return None


def parse_manifest(text: str) -> dict[str, Any] | None:
    """Parse a manifest; None if it is invalid. Pure."""
    try:
        manifest = parse_untrusted_json(text)
    except ValueError:
        return None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("factors"), dict):
        return None
    numbers = (manifest.get("attempts"), manifest.get("bytes", 0), manifest.get("files", 0))
    right = all(isinstance(number, int) and 0 <= number < _LARGEST for number in numbers)
    times = (manifest.get("ready"), manifest.get("used", 0))
    right = right and all(isinstance(number, int) and 0 <= number < _LATEST for number in times)
    return manifest if right and isinstance(manifest.get("environment", {}), dict) else None


def write_entry_manifest(path: str, manifest: Mapping[str, Any]) -> None:
    """Replace an entry's manifest. Raises OSError."""
    replace_file(f"{path}/{MANIFEST}", json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False))


def open_entry(root: str, entry: Entry, sources: Iterable[str], lines: list[str], writers: list[str] | None) -> Opened:
    """Open an entry below `root`: an existing one, a copy from another cache folder, or a new empty one.

    Log lines are added to `lines`, and to `writers` who could have written what is therefore not used; None trusts
    everyone. The folders above the entry are trusted already. Raises Unusable.
    """
    path = f"{root}/{COMPILED}/{entry.name}"
    if writers is not None and (who := find_writer(path)):
        writers.append(who)
        if is_in_use(path):
            raise Unusable(who)
        try:
            lines.append(f"cache: {path} moved to {quarantine_entry(path)}: {who}")
        except Unusable as error:
            raise Unusable(who) from error
    if not os.path.exists(path):
        _copy_entry_in(path, entry, sources, lines, writers)
    lock, alone = _lock_entry(path)
    manifest = read_entry_manifest(path)
    verdict = judge_entry(manifest, entry.factors, empty=_is_empty(path))
    if verdict.kind == HIT:
        share_lock(lock)
    elif not alone:
        os.close(lock)
        raise Unusable(verdict.why or "another server is filling it")
    if verdict.kind == REJECT:
        target = quarantine_entry(path)
        os.close(lock)
        lines.append(f"WARN {path}: {verdict.why}; moved to {target} and compiled again")
        manifest, verdict = {}, EntryVerdict(FILL, "the previous entry was quarantined")
        lock, _ = _lock_entry(path)
    return Opened(entry, path, lock, verdict, manifest or {})


def _lock_entry(path: str) -> tuple[int, bool]:
    """Make and lock an entry's folder; return the lock's descriptor and whether it is exclusive. Raises Unusable."""
    try:
        make_folder(path)
        lock = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
    except EntrypointError as error:
        raise Unusable(error.message.removeprefix(f"{path}: ")) from error
    except OSError as error:
        raise Unusable(f"its lock cannot be opened: {error.strerror}") from error
    for kind, alone in ((fcntl.LOCK_EX, True), (fcntl.LOCK_SH, False)):
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                continue
        return lock, alone  # on a file system without locks, the entry is used unlocked
    os.close(lock)
    raise Unusable("another server is filling it")


def share_lock(lock: int) -> None:
    """Turn an exclusive lock into a shared one."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return


def is_in_use(path: str) -> bool:
    """Tell whether another process holds an entry."""
    try:
        lock = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(lock)
    return False


def _is_empty(path: str) -> bool:
    """Tell whether an entry has no files yet; empty folders of an earlier start do not count."""
    for _, folders, names in os.walk(path):
        folders.sort()
        if any(name != LOCK and not name.startswith(MANIFEST) for name in names):
            return False
    return True


def quarantine_entry(path: str) -> str:
    """Move an entry to the quarantine; return its new path. Raises Unusable if that is impossible."""
    root, name = os.path.dirname(os.path.dirname(path)), os.path.basename(path)
    target = f"{root}/{QUARANTINE}/{name}.{time.time_ns() // 1_000_000}"
    try:
        make_folder(os.path.dirname(target))
        os.rename(path, target)
    except (OSError, EntrypointError) as error:
        raise Unusable(f"{getattr(error, 'strerror', '') or error}: it cannot be quarantined") from error
    return target


# --- copies ---------------------------------------------------------------------------------------------------------


def _copy_entry_in(
    path: str, entry: Entry, sources: Iterable[str], lines: list[str], writers: list[str] | None
) -> None:
    """Copy an entry from the first cache folder that has it ready; it appears atomically."""
    for source in sources:
        candidate = f"{source}/{COMPILED}/{entry.name}"
        manifest = read_entry_manifest(candidate)
        if not manifest or judge_entry(manifest, entry.factors, empty=False).kind != HIT:
            continue
        if writers is not None and (
            who := find_other_owner(source) or find_replacer(os.path.dirname(candidate)) or find_writer(candidate)
        ):
            writers.append(who)
            continue
        try:
            bytes_ = copy_into_place(candidate, path)
        except (OSError, EntrypointError) as error:
            lines.append(f"WARN {candidate} was not copied: {getattr(error, 'strerror', '') or error}")
            continue
        lines.append(f"cache: copied {bytes_ / 1e6:.1f} MB from {source}")
        return


def copy_into_place(source: str, path: str) -> int:
    """Copy a folder to a new path, where it appears atomically; return its bytes. Raises OSError, HOST."""
    temporary = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{os.getpid()}"
    make_folder(temporary)
    try:
        copied = copy_folder(source, temporary)
        if os.path.lexists(f"{temporary}/{LOCK}"):
            os.unlink(f"{temporary}/{LOCK}")
        os.rename(temporary, path)
    except OSError:
        remove_folder(temporary)
        raise
    return copied


# --- other entries --------------------------------------------------------------------------------------------------

_LOOKED_AT = 64
"""How many of the most recently used manifests are compared to find the nearest entry."""


class KeptEntry(NamedTuple):
    """An entry of a cache folder."""

    path: str
    manifest: Mapping[str, Any]


def list_entries(root: str) -> Iterator[KeptEntry]:
    """Yield the entries of a cache folder, most recently used first; also those without a readable manifest."""
    try:
        names = [name for name in os.listdir(f"{root}/{COMPILED}") if not name.startswith(".")]
    except OSError:
        return
    entries = [
        KeptEntry(f"{root}/{COMPILED}/{name}", read_entry_manifest(f"{root}/{COMPILED}/{name}") or {}) for name in names
    ]
    yield from sorted(entries, key=lambda entry: (entry.manifest.get("used", 0), entry.path), reverse=True)


def find_nearest_entry(entries: Iterable[KeptEntry], entry: Entry) -> tuple[KeptEntry, tuple[str, ...]] | None:
    """Return the ready entry of the same kind that differs in the fewest factors, and those factors. Pure."""
    best: tuple[KeptEntry, tuple[str, ...]] | None = None
    for count, cache_entry in enumerate(entries):
        factors = cache_entry.manifest.get("factors", {})
        if (
            count >= _LOOKED_AT
            or not cache_entry.manifest.get("ready")
            or ("model" in factors) != ("model" in entry.factors)
        ):
            continue
        differences = describe_changed_factors(factors, entry.factors)
        if best is None or len(differences) < len(best[1]):
            best = (cache_entry, differences)
    return best
