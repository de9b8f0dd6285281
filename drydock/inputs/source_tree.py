"""Folders of source code: unpacked within bounds, always with the same modes and times, and compared. IO."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from drydock.core.console import log
from drydock.core.errors import FetchError
from drydock.core.files import LARGEST_LFS_POINTER, file_sha256, is_lfs_pointer, join_below, set_mode
from drydock.core.tar import members, open_tar, unpack_tar
from drydock.inputs.store import mtime_of

MOST_FILES, MOST_BYTES = 500_000, 32 << 30
"""Limits of one source tree, far above those that images are compiled from."""
OLDEST = 315_619_200
"""1980-01-02 in seconds: zip files, and so wheels, have no earlier times."""
SHOWN = 5
"""Number of files that an error names."""
BROKEN = (tarfile.TarError, LookupError, OSError)
"""What Python's tarfile raises for damaged archives and for links that lead nowhere or to themselves."""
UNUSUAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of the disk, not of the archive."""


class Budget:
    """Counts the files and bytes of one source tree."""

    def __init__(self, name: str) -> None:
        self._name, self._files, self._bytes = name, 0, 0

    def take(self, size: int) -> None:
        """Count a file. Raises FetchError beyond the limits."""
        self._files, self._bytes = self._files + 1, self._bytes + size
        if self._files > MOST_FILES or self._bytes > MOST_BYTES:
            raise FetchError(f"{self._name}: the source code has more than {MOST_FILES} files or {MOST_BYTES} bytes")


def unpack_source(archive: Path, folder: Path, name: str) -> None:
    """Unpack source code, as tar.gz or tar.bz2, into an empty folder, without its top-level folder.

    Raises FetchError for a damaged archive, for a path or link that leads out of it, and beyond the limits.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        whole = Path(temporary)
        try:
            with archive.open("rb") as file, open_tar(file, "r:bz2" if _is_bz2(file) else "r:gz") as tar:
                unpack_tar(tar, whole, _counted_members(tar, Budget(name)))
        except BROKEN as error:
            if isinstance(error, OSError) and error.errno in UNUSUAL:
                raise
            raise FetchError(f"{name}: cannot unpack the source distribution: {error}") from error
        inner = list(whole.iterdir())
        if len(inner) != 1 or inner[0].is_symlink() or not inner[0].is_dir():
            raise FetchError(f"{name}: found {len(inner)} entries in the source distribution, expected one folder")
        for path in inner[0].iterdir():
            path.rename(folder / path.name)


def _is_bz2(file: IO[bytes]) -> bool:
    """Tell whether a file begins as bzip2's do; it is read from its start afterwards."""
    start = file.read(3)
    file.seek(0)
    return start == b"BZh"


def _counted_members(tar: tarfile.TarFile, budget: Budget) -> Iterator[tarfile.TarInfo]:
    for member in members(tar, 2 * MOST_BYTES):
        budget.take(member.size)
        yield member


def check_lfs_pointers(folder: Path, name: str) -> None:
    """Raise FetchError for files that are pointers of Git LFS: neither git nor an archive of a forge has the files."""
    pointers = sorted(
        str(path.relative_to(folder))
        for path, status in _walk_tree(folder)
        if stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_LFS_POINTER and is_lfs_pointer(path)
    )
    if pointers:
        listed = ", ".join(pointers[:SHOWN]) + (f" and {len(pointers) - SHOWN} more" if pointers[SHOWN:] else "")
        raise FetchError(
            f"{name}: found pointers of Git LFS, expected the files: {listed}",
            hint="clone the repository, run `git lfs pull`, pack its folder as tar.gz, and pin that in the stack: "
            "`url` and `sha256` instead of `repository`",
        )


def warn_of_links(folder: Path, name: str) -> None:
    """Log each link that leads out of a source tree: in the build it names another file, or none."""
    for path, status in _walk_tree(folder):
        if not stat.S_ISLNK(status.st_mode):
            continue
        target = path.readlink()
        place = posixpath.normpath(path.relative_to(folder).parent / target)
        if target.is_absolute() or place.split("/")[0] == "..":
            log(f"warning: {name}: {path.relative_to(folder)} links to {target}, which is not in the source code")


def warn_of_submodules(folder: Path, name: str) -> None:
    """Log each submodule whose folder is empty: archives that a forge makes of a repository have none."""
    described = folder / ".gitmodules"
    text = described.read_text(encoding="utf-8", errors="replace") if described.is_file() else ""
    for place in re.findall(r"^[ \t]*path[ \t]*=[ \t]*(\S+)[ \t\r]*$", text, re.MULTILINE):
        inner = join_below(folder, place)
        if inner.is_dir() and not any(inner.iterdir()):
            hint = "git has it: `repository` and `ref` instead of `url`"
            log(f"warning: {name}: the archive lacks the submodule {place}, whose folder is empty; {hint}")


def settle_modes_and_times(folder: Path, key: str) -> None:
    """Give all files of a folder modes and times that depend on nothing but the id of the source code, in hexadecimal.

    One time for all: `make` finds nothing out of date. Another time for another source: BuildKit takes a file of equal
    path, size and time for unchanged.
    """
    time = OLDEST + mtime_of(key)
    for path, status in _walk_tree(folder):
        if not stat.S_ISLNK(status.st_mode):
            set_mode(path, 0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & stat.S_IXUSR else 0o644)
        os.utime(path, (time, time), follow_symlinks=False)
    os.utime(folder, (time, time))


def is_same_tree(first: Path, second: Path) -> bool:
    """Tell whether two folders have the same files: names, kinds, modes, times and bytes."""
    return _describe_tree(first) == _describe_tree(second)


def _describe_tree(folder: Path) -> dict[Path, tuple[int, int, str]]:
    return {
        path.relative_to(folder): (status.st_mode, status.st_mtime_ns, _hash_content(path, status.st_mode))
        for path, status in _walk_tree(folder)
    }


def _hash_content(path: Path, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return str(path.readlink())
    return file_sha256(path) if stat.S_ISREG(mode) else ""


def _walk_tree(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield everything below a folder, the contents of a folder before the folder; links are not followed."""
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = Path(parent, name)
            yield path, path.lstat()
