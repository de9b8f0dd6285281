"""Reads tar archives that anyone may have written. IO."""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import IO, Literal

LONGEST_HEADER = 1 << 18
"""Bytes of an extended header, which holds a path, a link or attributes. tarfile reads it into memory."""
MOST_GLOBAL = 100
"""Extended headers that apply to all further files; git writes one."""
MOST_MEMBERS = 2_000_000
"""A base image with CUDA has 60,000."""
LARGEST = 64 << 30
"""Bytes of an archive's content, uncompressed: a hundred bytes of zstd can stand for a terabyte."""

_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_BROKEN = (ValueError, OverflowError, EOFError, RecursionError, gzip.BadGzipFile, zlib.error)
"""What tarfile and decompressors raise for invalid numbers, endless chains of headers and damaged data."""


class Header(tarfile.TarInfo):
    """A header that is refused before tarfile reads gigabytes of it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        """Parse a block. Raises tarfile.ReadError for an extended header that is too long."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDED and not 0 <= header.size <= LONGEST_HEADER:
            raise tarfile.ReadError(f"found a header of {header.size} bytes, expected at most {LONGEST_HEADER}")
        return header


@contextlib.contextmanager
def open_tar(file: IO[bytes], mode: Literal["r:", "r:gz"]) -> Iterator[tarfile.TarFile]:
    """Open an archive to read with `members`. Raises tarfile.TarError or OSError for everything wrong with it."""
    try:
        with tarfile.open(fileobj=file, mode=mode, tarinfo=Header) as archive:
            yield archive
    except _BROKEN as error:
        raise tarfile.ReadError(f"damaged archive: {error or type(error).__name__}") from error


def members(archive: tarfile.TarFile, at_most: int = LARGEST) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive, of at most `at_most` bytes in total; the archive does not keep them.

    Raises tarfile.ReadError for more, and for headers that lead backwards, which would be read without end.
    """
    last, size, count = -1, 0, 0
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]
        size, count = size + member.size, count + 1
        if member.offset <= last or member.size < 0:
            raise tarfile.ReadError(f"{member.name[:80]!r}: invalid size or position")
        if max(size, member.offset_data + member.size) > at_most or count > MOST_MEMBERS:
            raise tarfile.ReadError(f"found more than {at_most} bytes or {MOST_MEMBERS} files")
        if len(archive.pax_headers) > MOST_GLOBAL:
            raise tarfile.ReadError(f"found more than {MOST_GLOBAL} global headers")
        last = member.offset
        yield member
