"""Folders and files below the cache: made for a group, written whole, copied. IO.

Python's shutil would do the copying, and costs 6 ms to import before vLLM starts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from entrypoints.core.errors import HOST, EntrypointError

SHARED = 0o770
"""Group-writable: an arbitrary UID comes with group 0, and the next start may have another UID."""
PRIVATE = 0o700
_CHUNK = 1 << 26
HINT = "mount a volume that uid or group 0 can write at /cache, such as -v drydock:/cache, or --tmpfs /tmp for a try"


def make(folder: str, mode: int = SHARED) -> None:
    """Make a folder and what is missing above it; two starts at once both find it made, since mkdir is atomic.

    Raises HOST.
    """
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    target = missing[0] if missing else folder
    try:
        for each in reversed(missing):
            _make_one(each, mode)
    except OSError as error:
        raise EntrypointError(HOST, f"{target}: cannot make this folder: {error.strerror}", HINT) from error
    if not os.path.isdir(target):
        raise EntrypointError(HOST, f"{target}: expected a folder, found a file", HINT)
    if not os.access(target, os.R_OK | os.W_OK | os.X_OK):
        owner = os.stat(target).st_uid
        found = f"belongs to uid {owner}; uid {os.getuid()}, gid {os.getgid()} may not write there"
        raise EntrypointError(HOST, f"{target}: {found}", HINT)


def _make_one(folder: str, mode: int) -> None:
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    os.chmod(folder, mode)  # the umask does not apply to chmod


def make_private(folder: str) -> None:
    """Make a folder that is ours alone: anyone may have made that name in a shared /tmp. Raises HOST."""
    make(folder, PRIVATE)
    status = os.lstat(folder)
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or shared:
        raise EntrypointError(
            HOST, f"{folder}: expected a folder of uid {os.getuid()} that nobody else writes to", HINT
        )


def replace(path: str, text: str) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def write(path: str, text: str) -> None:
    """Write a file below the cache, whole or not at all. Raises HOST."""
    make(os.path.dirname(path))
    try:
        replace(path, text)
    except OSError as error:
        raise EntrypointError(HOST, f"{path}: cannot be written: {error.strerror}", HINT) from error


def files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield regular files below a folder, by relative path, links aside; what goes away meanwhile is left out."""
    for found in _walk(folder, ""):
        try:
            status = found[1].stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield found[0], status


def _walk(folder: str, below: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        name = f"{below}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{name}/")
        else:
            yield name, entry


def size(folder: str) -> tuple[int, int]:
    """Return the number of files below a folder and the bytes that they take on disk."""
    found = [status.st_blocks * 512 for _, status in files(folder)]
    return len(found), sum(found)


def copy(source: str, target: str) -> int:
    """Copy the regular files below a folder; return their bytes. Links and devices are left behind. Raises OSError."""
    total = 0
    for name, status in files(source):
        made = os.path.join(target, name)
        os.makedirs(os.path.dirname(made), exist_ok=True)
        _copy_file(os.path.join(source, name), made)
        os.chmod(made, (status.st_mode & 0o777) | 0o660)
        os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))
        total += status.st_size
    return total


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as reading, open(target, "wb") as writing:
        while os.sendfile(writing.fileno(), reading.fileno(), None, _CHUNK):
            continue


def remove(folder: str) -> None:
    """Remove a folder; what cannot be removed stays."""
    from shutil import rmtree

    rmtree(folder, ignore_errors=True)
