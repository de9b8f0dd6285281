"""Reads tar archives that anyone may have written.

What tarfile reads in another way than Go's archive/tar, with which containerd and Docker unpack layers, is an error:
otherwise a layer holds files that a check does not see. Sources: Go's archive/tar (reader.go, format.go), pax(1).
"""

from __future__ import annotations

import contextlib
import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, Literal, cast

import zstandard

from entrypoints.core import tar
from entrypoints.core.tar import members as members  # noqa: PLC0414 - for other modules, too

_BROKEN = (ValueError, OverflowError, EOFError, RecursionError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)
"""What tarfile and decompressors raise for invalid numbers, endless chains of headers and damaged data."""


_NUMBERS = tuple(
    slice(*ends) for ends in ((100, 108), (108, 116), (116, 124), (124, 136), (136, 148), (329, 337), (337, 345))
)
_NUMBER = re.compile(rb" *[0-7]*[ \0]*|[\x80\xff].*", re.DOTALL)
_RECORD = re.compile(rb"([1-9][0-9]{0,8}) ([^=\n]+)=")
_RENAMING = frozenset({"path", "linkpath", "size"})


class Header(tar.Header):
    """A header with one meaning, which is refused before tarfile reads gigabytes of it."""

    kinds: frozenset[bytes] = frozenset()
    """Types of the extended headers that apply to it; AREGTYPE for a folder by its slash, as before POSIX."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        """Parse a block. Raises tarfile.ReadError for what tarfile would take for the end of the archive."""
        try:
            header = cast("Header", super().frombuf(buf, encoding, errors))
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"damaged archive: {error}") from error
        _refuse_ambiguous(bytes(buf))
        if header.isdir() and buf[156:157] == tarfile.AREGTYPE:
            header.kinds = frozenset({tarfile.AREGTYPE})
        return header

    def _proc_gnulong(self, archive: Any) -> Header:
        return self._apply_to(super()._proc_gnulong(archive))  # type: ignore[misc]

    def _proc_pax(self, archive: Any) -> Header:
        """Apply an extended header, as tarfile does. Raises tarfile.ReadError for records that Go does not accept."""
        found = _records(archive.fileobj.read(self._block(self.size))[: self.size])  # type: ignore[attr-defined]
        shared = self.type == tarfile.XGLTYPE
        if shared and found.keys() & _RENAMING:
            raise tarfile.ReadError("found a global header that renames files")
        try:
            following: Header = self.fromtarfile(archive)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"damaged archive: nothing follows an extended header: {error}") from error
        if shared:
            archive.pax_headers.update(found)
            return self._apply_to(following)
        following._apply_pax_info({**archive.pax_headers, **found}, archive.encoding, archive.errors)  # type: ignore[attr-defined]
        following.offset = self.offset
        if "size" in found:
            content = following._block(following.size) if following.isreg() else 0  # type: ignore[attr-defined]
            archive.offset = following.offset_data + content
        return self._apply_to(following)

    def _apply_to(self, following: Header) -> Header:
        """Note that it applies to a header. Raises tarfile.ReadError if another one does, too: which wins differs."""
        both = {*following.kinds, self.type}
        unclear = tarfile.XHDTYPE in both or not both.isdisjoint((tarfile.XGLTYPE, tarfile.AREGTYPE))
        if self.type != tarfile.XGLTYPE and (self.type in following.kinds or (len(both) > 1 and unclear)):
            raise tarfile.ReadError(f"{following.name[:80]!r}: has several names")
        following.kinds = frozenset(both)
        return following


def _refuse_ambiguous(block: bytes) -> None:
    """Raise tarfile.ReadError for numbers, a prefix or a type that other programs read in another way."""
    if not all(_NUMBER.fullmatch(block[field]) for field in _NUMBERS):
        raise tarfile.ReadError("damaged archive: found a number that is not octal")
    if block[156:157] == tarfile.GNUTYPE_SPARSE:
        raise tarfile.ReadError("found a sparse file, expected none")
    posix = block[257:263] == b"ustar\0" and block[508:] != b"tar\0"
    if not posix and any(block[345:500]):
        raise tarfile.ReadError("found a prefix in a header of a format without one")


def _records(data: bytes) -> dict[str, str]:
    """Return the records of an extended header. Raises tarfile.ReadError."""
    found: dict[str, str] = {}
    while data:
        match = _RECORD.match(data)
        end = int(match[1]) if match else 0
        if not match or not match.end() < end <= len(data) or data[end - 1] != ord("\n"):
            raise tarfile.ReadError("found an invalid record in an extended header")
        name, value = match[2].decode(errors="surrogateescape"), data[match.end() : end - 1]
        if name.startswith("GNU.sparse."):
            raise tarfile.ReadError("found a sparse file, expected none")
        if name in _RENAMING and (not value or b"\0" in value or (name == "size" and not value.isdigit())):
            raise tarfile.ReadError(f"found an invalid {name} in an extended header")
        found[name], data = value.decode(errors="surrogateescape"), data[end:]
    return found


@contextlib.contextmanager
def open_tar(file: IO[bytes], mode: Literal["r:", "r|", "r:gz", "r:bz2"]) -> Iterator[tarfile.TarFile]:
    """Open an archive to read with `members`. Raises tarfile.TarError or OSError for everything wrong with it."""
    try:
        with tarfile.open(fileobj=file, mode=mode, tarinfo=Header) as archive:
            yield archive
    except _BROKEN as error:
        raise tarfile.ReadError(f"damaged archive: {error or type(error).__name__}") from error


def check_end(archive: tarfile.TarFile) -> None:
    """Read what follows the last member. Raises tarfile.ReadError for anything but zeros, which others may read."""
    file = cast("IO[bytes]", archive.fileobj)
    while data := file.read(1 << 20):
        if data.count(0) != len(data):
            raise tarfile.ReadError("found data after the end of the archive")
