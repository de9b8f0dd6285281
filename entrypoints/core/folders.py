"""Creates, writes, copies and removes folders and files in the cache, and reads files with a limit. IO.

shutil is not used for copying, because importing it takes 6 ms before vLLM starts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping

from entrypoints.core.errors import HOST, EntrypointError

PRIVATE = 0o700
READABLE = 0o644
"""Of a file that an option asked for."""
_CHUNK = 1 << 26
MODELS = "/models"
"""Where users mount models."""
IMAGE_HOME = "/"
"""HOME of the image. Only root can write there, so no other user can put a file into it that a program runs."""
UNCHOSEN_HOMES = ("", IMAGE_HOME, "/cache/home")
"""Values of HOME that no user chose. A container runtime replaces an empty one by that of /etc/passwd, the last."""
HINT = "mount a volume that this user can write at /cache, such as -v drydock:/cache, or --tmpfs /tmp for a try"


def make_folder(folder: str, mode: int = 0o770) -> None:
    """Create a folder and its missing parents, with this mode less the umask.

    Two starts may do this at the same time, since mkdir is atomic. Raises HOST.
    """
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    target = missing[0] if missing else folder
    try:
        for parent in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, mode)
    except OSError as error:
        raise EntrypointError(HOST, f"{target}: cannot create the folder: {error.strerror}", HINT) from error
    if not os.path.isdir(target):
        raise EntrypointError(HOST, f"{target}: expected a folder, found a file", HINT)
    if not os.access(target, os.R_OK | os.W_OK | os.X_OK):
        owner = os.stat(target).st_uid
        owner_text = f"owned by uid {owner}; uid {os.getuid()}, gid {os.getgid()} cannot write to it"
        raise EntrypointError(HOST, f"{target}: {owner_text}", HINT)


def make_private_folder(folder: str) -> None:
    """Create a folder that only this user can write to, since others may create any name in a shared /tmp.

    Raises HOST.
    """
    make_folder(folder, PRIVATE)
    status = os.lstat(folder)
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or shared:
        raise EntrypointError(HOST, f"{folder}: expected a folder that only uid {os.getuid()} can write to", HINT)


def locate_private_root(env: Mapping[str, str], uid: int) -> str:
    """Return the folder below TMPDIR for what this user does not write to the volume."""
    return f"{env.get('TMPDIR') or '/tmp'}/drydock-{uid}"  # noqa: S108 -- made 0700, its owner checked


def choose_private_home(env: Mapping[str, str]) -> str:
    """Return the home folder of a program that no plan gives one: the user's HOME, else a folder of this user alone.

    A shell, Python and cloud clients run what they find there. The image's own HOME, /, is writable for root only, so
    it stays if no folder can be made.
    """
    home = env.get("HOME", "")
    if home not in UNCHOSEN_HOMES:
        return home
    root = locate_private_root(env, os.getuid())
    try:
        make_private_folder(root)
        make_folder(f"{root}/home", PRIVATE)
    except EntrypointError:
        return IMAGE_HOME
    return f"{root}/home"


def replace_file(path: str, text: str, mode: int | None = None) -> None:
    """Write a file atomically; without `mode`, with what the umask leaves. Raises OSError."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        if mode is not None:
            with contextlib.suppress(OSError):  # a file system that has its own modes, such as vfat
                os.fchmod(file.fileno(), mode)
        file.write(text)
    os.replace(temporary, path)


def write_cache_file(path: str, text: str) -> None:
    """Write a file in the cache atomically. Raises HOST."""
    make_folder(os.path.dirname(path))
    try:
        replace_file(path, text)
    except OSError as error:
        raise EntrypointError(HOST, f"{path}: cannot write the file: {error.strerror}", HINT) from error


def read_regular(path: str, most: int) -> bytes:
    """Return the first `most` bytes of a regular file, without blocking on a pipe or a device. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(22, "not a regular file", path)
        chunks = []
        remaining = most
        while remaining and (chunk := os.read(handle, remaining)):
            chunks.append(chunk)
            remaining -= len(chunk)
    finally:
        os.close(handle)
    return b"".join(chunks)


def read_bounded(path: str, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes. Raises OSError, also for a pipe, a device or a larger file."""
    data = read_regular(path, limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 20} MiB", path)
    return data


def list_files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the relative path and status of each regular file in a folder and its subfolders.

    Links are skipped, and so are files that are removed in the meantime.
    """
    for path, entry in _walk_entries(folder, ""):
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield path, status


def _walk_entries(folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_entries(entry.path, f"{name}/")
        else:
            yield name, entry


def measure_folder(folder: str) -> tuple[int, int]:
    """Return the number of files in a folder and its subfolders, and their size on disk in bytes."""
    sizes = [status.st_blocks * 512 for _, status in list_files(folder)]
    return len(sizes), sum(sizes)


def copy_folder(source: str, target: str) -> int:
    """Copy the regular files of a folder and its subfolders; return their size in bytes.

    Links and devices are not copied. Raises OSError.
    """
    total = 0
    for name, status in list_files(source):
        path = os.path.join(target, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _copy_file(os.path.join(source, name), path)
        if status.st_mode & stat.S_IXUSR:
            make_executable(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        total += status.st_size
    return total


def compute_short_digest(text: str) -> str:
    """Return a digest of a text in twelve characters, for the name of a file or folder that its content decides."""
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:12]


def make_executable(path: str) -> None:
    """Let whoever can read a file execute it."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    os.chmod(path, mode | (mode & 0o444) >> 2)


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as reading, open(target, "wb") as writing:
        while os.sendfile(writing.fileno(), reading.fileno(), None, _CHUNK):
            continue


def remove_folder(folder: str) -> None:
    """Remove a folder. Files that cannot be removed are left."""
    from shutil import rmtree

    rmtree(folder, ignore_errors=True)
