"""Which cards a file has code for: the containers of device code in it, found in a stream. Pure.

Only headers are read: code may be compressed, and its bytes are passed over. Nothing of a vendor's is loaded. A file
is searched as a whole, without its table of sections, which is at its end: apart from .nv_fatbin and .hip_fatbin, code
that is still to be linked (__nv_relfatbin) counts. Sources: NVIDIA's container as objects of nvcc 13.0 have it (sm_90,
sm_90a, sm_100f, PTX), and the libraries of PyTorch 2.10.0 and vLLM 0.33.0, of which `cuobjdump` counts the same; LLVM's
EF_CUDA_SM (BinaryFormat/ELF.h); Clang's ClangOffloadBundler manual (uncompressed and compressed bundles).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Annotated

import zstandard
from pydantic import StringConstraints

from drydock.model.record import Count, Record

PIECE = 1 << 20
"""Bytes that are read at once."""
LARGEST_FILE = 16 << 30
"""Bytes of a file that is read. The largest library of PyTorch has 2 GB."""
MOST_CONTAINERS = 1 << 20
"""Containers of a file. Libraries of PyTorch have 2,000."""
MOST_ARCHITECTURES = 256
"""Different ones of a file. NVIDIA and AMD have made fewer."""
MOST_ENTRIES = 4096
"""Entries of a container: one for each architecture and part."""
LONGEST_HEADER = 1 << 16
"""Bytes of an entry's header, and of a bundle's table: a few names."""
FATBIN, BUNDLE, COMPRESSED = b"\x50\xed\x55\xba\x01\x00\x10\x00", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
"""What a container begins with: NVIDIA's 0xBA55ED50 with version 1 and a header of 16 bytes; Clang's two bundles."""
_START = re.compile(b"|".join(map(re.escape, (FATBIN, BUNDLE, COMPRESSED))))
_LONGEST_START = len(BUNDLE)
_KINDS = {1: "compute", 2: "sm"}
"""Kind of an entry → how NVIDIA calls such code: PTX, which the driver compiles, and machine code."""
_OWN, _FAMILY = 1 << 20, 1 << 21
"""Flags of an entry: code for exactly this architecture (sm_90a), and for its family (sm_100f)."""
_FATBIN_HEADER, _ENTRY, _ELF_HEADER = 16, 48, 64
"""Bytes of a container's header; of an entry up to its flags; of an ELF file's header."""
_CUDA_MACHINE, _OLD_ABI = 190, 7
_OLD_OWN = 0x800
"""EF_CUDA_ACCELERATORS of ABI 7; later ones do not say it in the header."""
_TARGET = re.compile(r"(?:hipv?4?|host)-[\w-]{0,64}-(gfx[0-9a-f]{1,8}(?:-[a-z0-9-]{0,32}generic)?)[:+\w-]{0,64}")
_BUNDLE_HEADERS = {1: 20, 2: 24, 3: 32}
"""Version of a compressed bundle → bytes of its header."""


class DeviceCode(Record):
    """The code for cards in a file."""

    containers: Count
    counts: Mapping[Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,40}$")], Count]
    """Architecture → containers with code for it: sm_90a, gfx942; compute_80 is PTX, which the driver compiles."""


def read_device_code(file: IO[bytes]) -> DeviceCode:
    """Read a file to its end, at most LARGEST_FILE; a damaged container counts as none. Raises what reading raises."""
    stream = _ForwardReader(file)
    start = stream.peek(_ELF_HEADER)
    if cubin := _read_cubin(start):
        return DeviceCode(containers=1, counts={cubin: 1})
    counts: Counter[str] = Counter()
    containers = 0
    while containers < MOST_CONTAINERS and len(counts) < MOST_ARCHITECTURES and (kind := stream.find_start()):
        readers = {FATBIN: _read_fatbin, BUNDLE: _read_bundle, COMPRESSED: _read_compressed}
        architectures = {*readers[kind](stream)}
        counts.update(architectures)
        containers += bool(architectures)
    return DeviceCode(containers=containers, counts=dict(sorted(counts.items())))


class _ForwardReader:
    """A file that is read once, forwards."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._piece, self._position, self._left = file, b"", 0, LARGEST_FILE

    def peek(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end."""
        while len(self._piece) - self._position < size and self._read_piece():
            pass
        return self._piece[self._position : self._position + size]

    def take(self, size: int) -> bytes:
        """Return the next bytes and pass over them; fewer at the end."""
        data = self.peek(size)
        self._position += len(data)
        return data

    def skip(self, size: int) -> None:
        """Pass over bytes, or all that are left."""
        while size > len(self._piece) - self._position:
            size -= len(self._piece) - self._position
            self._position = len(self._piece)
            if not self._read_piece():
                return
        self._position += size

    def find_start(self) -> bytes:
        """Pass over all before the next beginning of a container, and return it; empty at the end."""
        while True:
            if match := _START.search(self._piece, self._position):
                self._position = match.start()
                return match[0]
            self._position = max(self._position, len(self._piece) - _LONGEST_START + 1)
            if not self._read_piece():
                return b""

    def _read_piece(self) -> bool:
        """Add a piece to what was not passed over yet; tell whether there was one."""
        piece = self._file.read(min(PIECE, self._left))
        self._left -= len(piece)
        self._piece, self._position = self._piece[self._position :] + piece, 0
        return bool(piece)


def _read_fatbin(stream: _ForwardReader) -> Iterator[str]:
    """Yield the architectures of NVIDIA's container, and pass over it."""
    (left,) = struct.unpack("<8xQ", stream.take(_FATBIN_HEADER).ljust(_FATBIN_HEADER, b"\0"))
    for _ in range(MOST_ENTRIES):
        entry = stream.peek(_ENTRY)
        if len(entry) < _ENTRY or left < _ENTRY:
            return
        kind, header, size, architecture, flags = struct.unpack("<H2xIQ12xI8xQ", entry)
        if kind not in _KINDS or not _ENTRY <= header <= LONGEST_HEADER or header + size > left:
            return
        suffix = "a" if flags & _OWN else "f" if flags & _FAMILY else ""
        yield f"{_KINDS[kind]}_{architecture}{suffix}"
        stream.skip(header + size)
        left -= header + size


def _read_bundle(stream: _ForwardReader) -> Iterator[str]:
    """Yield the architectures of Clang's bundle, whose code a search for the next one then passes over."""
    stream.skip(len(BUNDLE))
    yield from _list_targets(stream.peek(LONGEST_HEADER))


def _read_compressed(stream: _ForwardReader) -> Iterator[str]:
    """Yield the architectures of a compressed bundle, of which only the beginning is unpacked."""
    version, method = struct.unpack("<4xHH", stream.peek(8).ljust(8, b"\0"))
    stream.skip(len(COMPRESSED))
    if version not in _BUNDLE_HEADERS or method not in _METHODS:
        return
    data = stream.peek(_BUNDLE_HEADERS[version] - len(COMPRESSED) + LONGEST_HEADER)
    try:
        plain = _METHODS[method](data[_BUNDLE_HEADERS[version] - len(COMPRESSED) :])
    except (zlib.error, zstandard.ZstdError):  # these four letters also occur in other data
        return
    if plain.startswith(BUNDLE):
        yield from _list_targets(plain[len(BUNDLE) :])


def _unpack_zlib(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, LONGEST_HEADER)


def _unpack_zstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(data).read(LONGEST_HEADER)


_METHODS = {0: _unpack_zlib, 1: _unpack_zstd}
"""Method of a compressed bundle → what unpacks its beginning."""


def _list_targets(table: bytes) -> Iterator[str]:
    """Yield the architectures that the table of a bundle names: its length, then offset, size and name of each."""
    (count,) = struct.unpack("<Q", table[:8].ljust(8, b"\0"))
    position = 8
    for _ in range(min(count, MOST_ENTRIES)):
        (length,) = struct.unpack("<16xQ", table[position : position + 24].ljust(24, b"\0"))
        position += 24
        name = table[position : position + min(length, len(table))].decode("ascii", errors="replace")
        position += length
        if match := _TARGET.fullmatch(name):
            yield match[1]


def _read_cubin(start: bytes) -> str:
    """Return the architecture of a file that is NVIDIA's machine code alone; empty for another file."""
    if len(start) < _ELF_HEADER or not start.startswith(b"\x7fELF\x02\x01"):
        return ""
    abi, machine, flags = struct.unpack("<8xB9xH28xI12x", start[:_ELF_HEADER])
    if machine != _CUDA_MACHINE:
        return ""
    if abi <= _OLD_ABI:
        return f"sm_{flags & 0xFF}{'a' if flags & _OLD_OWN else ''}"
    return f"sm_{flags >> 8 & 0xFF}"
