"""Reads and unpacks tar archives that anyone may have written.

It reads zstd too, and a damaged header is never the archive's end.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Literal, cast

import zstandard

from drydock.core.files import make_folder, set_mode
from entrypoints.core import tar
from entrypoints.core.tar import members as members  # noqa: PLC0414 - for other modules, too

LONGEST_NAME = 200
"""Characters of a name that are shown."""
_BROKEN = (ValueError, OverflowError, EOFError, RecursionError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)
"""What tarfile and decompressors raise for invalid numbers, endless chains of headers and damaged data."""


class Header(tar.Header):
    """A header that is refused if it is damaged: tarfile would take it for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        """Parse a block. Raises tarfile.ReadError."""
        try:
            return cast("Header", super().frombuf(buf, encoding, errors))
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"damaged archive: {error}") from error


@contextlib.contextmanager
def open_tar(file: IO[bytes], mode: Literal["r:", "r|", "r:gz", "r:bz2"]) -> Iterator[tarfile.TarFile]:
    """Open an archive to read with `members`. Raises tarfile.TarError or OSError for everything wrong with it."""
    try:
        with tarfile.open(fileobj=file, mode=mode, tarinfo=Header) as archive:
            yield archive
    except _BROKEN as error:
        raise tarfile.ReadError(f"damaged archive: {error or type(error).__name__}") from error


def small_files(data: bytes, at_most: int, most_files: int) -> dict[str, bytes]:
    """Return the files of an archive in memory, by name. Raises TarError or OSError for anything but plain files."""
    files: dict[str, bytes] = {}
    with open_tar(io.BytesIO(data), "r:") as archive:
        for member in members(archive, at_most):
            if not member.isreg() or member.issparse() or len(files) == most_files:
                what = f"more than {most_files} files" if member.isreg() else "no regular file"
                raise tarfile.ReadError(f"{_shorten_name(member.name)}: {what}")
            if member.name in files:
                raise tarfile.ReadError(f"{_shorten_name(member.name)}: found twice")
            content = archive.extractfile(member)
            files[member.name] = content.read() if content else b""
    return files


def unpack_tar(archive: tarfile.TarFile, folder: Path, contents: Iterable[tarfile.TarInfo] | None = None) -> None:
    """Unpack an archive into an empty folder; `contents` are its members, for a caller that counts them.

    It refuses what the data filter of PEP 706 refuses, on every Python: tarfile has that filter since 3.11.4 only, and
    Debian 12 has 3.11.2. Owners, times, setuid bits and the right of others to write are left out. Raises TarError or
    OSError.
    """
    links: dict[PurePosixPath, str] = {}
    for member in members(archive) if contents is None else contents:
        path = _path_below(member.name)
        if links.keys() & {path, *path.parents}:
            raise tarfile.ReadError(f"{_shorten_name(member.name)}: leads through a link")
        if member.issym():
            links[path] = member.linkname
        elif path != PurePosixPath():
            _write_member(archive, member, folder, path)
    for path, target in links.items():  # last, so that nothing is written through a link
        if _leads_out(path, target, links):
            raise tarfile.ReadError(
                f"{_shorten_name(str(path))}: links to {_shorten_name(target)}, outside the archive's folder"
            )
        make_folder((folder / path).parent)
        (folder / path).unlink(missing_ok=True)
        (folder / path).symlink_to(target)


def _path_below(name: str) -> PurePosixPath:
    """Return the path of a member in its folder. Raises ReadError for one that is absolute or has `..`."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise tarfile.ReadError(f"{_shorten_name(name)}: not a path below the archive's folder")
    return path


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, path: PurePosixPath) -> None:
    """Write a file or a folder, in place of an earlier one of that name. Raises ReadError for a device or a pipe."""
    target = folder / path
    make_folder(target.parent)
    if member.isdir():
        target.mkdir(exist_ok=True)
    elif member.islnk():
        target.unlink(missing_ok=True)
        os.link(folder / _path_below(member.linkname), target)
    elif member.isreg():
        target.unlink(missing_ok=True)  # else its bytes would also change under its other names
        content = archive.extractfile(member) or io.BytesIO()
        with target.open("xb") as file:
            shutil.copyfileobj(content, file)
        set_mode(target, 0o755 if member.mode & stat.S_IXUSR else 0o644)
    else:
        raise tarfile.ReadError(f"{_shorten_name(member.name)}: neither a file nor a folder nor a link")


def _leads_out(link: PurePosixPath, target: str, links: Collection[PurePosixPath]) -> bool:
    """Tell whether a link leads out of the archive's folder, or might: `..` after another link goes anywhere."""
    place, behind_link = link.parent, False
    for part in PurePosixPath(target).parts:
        if part == "/" or (part == ".." and (behind_link or place == PurePosixPath())):
            return True
        place = place.parent if part == ".." else place / part
        behind_link |= place in links
    return False


def _shorten_name(name: str) -> str:
    return f"{name[:LONGEST_NAME]!a}"
