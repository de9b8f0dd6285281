"""Reads tar archives that anyone may have written: also zstd, and a damaged header is never the archive's end."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Literal, cast

import zstandard

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
    found: dict[str, bytes] = {}
    with open_tar(io.BytesIO(data), "r:") as archive:
        for member in members(archive, at_most):
            if not member.isreg() or member.issparse() or len(found) == most_files:
                what = f"more than {most_files} files" if member.isreg() else "no regular file"
                raise tarfile.ReadError(f"{member.name[:LONGEST_NAME]!a}: {what}")
            if member.name in found:
                raise tarfile.ReadError(f"{member.name[:LONGEST_NAME]!a}: found twice")
            content = archive.extractfile(member)
            found[member.name] = content.read() if content else b""
    return found
