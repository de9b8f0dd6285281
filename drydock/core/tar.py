"""Reads tar archives that anyone may have written: also zstd, and a damaged header is never the archive's end."""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Literal, cast

import zstandard

from entrypoints.core import tar
from entrypoints.core.tar import members as members  # noqa: PLC0414 - for other modules, too

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
