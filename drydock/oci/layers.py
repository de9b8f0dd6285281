"""Reads the layers of an OCI image, entry by entry, and applies whiteouts. IO (reads only).

Source: OCI image specification 1.1, layer.md ("Whiteouts").
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar, cast

from drydock.core.errors import UntrustedError
from drydock.core.tar import check_end, members, open_tar
from drydock.oci.diff import decompressed

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
CHUNK = 1 << 20


class Entry(NamedTuple):
    """An entry of a layer. Its content can be read only until the next entry is requested."""

    layer: int
    path: str
    """Without a leading slash; empty for the root."""
    info: tarfile.TarInfo
    content: Any
    """A readable file; None unless the entry is a regular file."""

    @property
    def hides(self) -> bool:
        """Tell whether it is a whiteout, which removes something from the layers below."""
        return posixpath.basename(self.path).startswith(WHITEOUT)


class Uncompressed(NamedTuple):
    """A layer's tar stream."""

    sha256: str
    size: int
    """Bytes."""


class HasLayer(Protocol):
    """Anything that records which layer it comes from."""

    @property
    def layer(self) -> int:
        """Return the number of the layer; the lowest is 0."""


Item = TypeVar("Item", bound=HasLayer)


class _Hashing:
    """A stream that hashes and counts the bytes that are read."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._hash, self._size = stream, hashlib.sha256(), 0

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self._hash.update(data)
        self._size += len(data)
        return data

    def finish(self) -> Uncompressed:
        """Read what follows the end of the archive, and return what was read."""
        while self.read(CHUNK):
            pass
        return Uncompressed(self._hash.hexdigest(), self._size)


def entries(
    manifest: Mapping[str, Any], blob: Callable[[str], Path], finished: Callable[[Uncompressed], object] = bool
) -> Iterator[Entry]:
    """Yield every entry of every layer, the lowest layer first; `blob` returns the file of a digest.

    `finished` is called with each layer's tar stream once all its entries were yielded. Raises UntrustedError for a
    layer that is damaged, or larger than any image.
    """
    for number, descriptor in enumerate(manifest["layers"]):
        try:
            with (
                closing(decompressed(blob(descriptor["digest"]), descriptor["mediaType"])) as stream,
                open_tar(cast("IO[bytes]", hashing := _Hashing(stream)), "r|") as archive,
            ):
                for info in members(archive):
                    path = posixpath.normpath(info.name).lstrip("/")
                    content = archive.extractfile(info) if info.isreg() else None
                    yield Entry(number, "" if path == "." else path, info, content)
                check_end(archive)
                finished(hashing.finish())
        except tarfile.TarError as error:
            raise UntrustedError(f"layer {descriptor['digest']}: invalid: {error}") from error


def hide(below: dict[str, Item], whiteout: Entry) -> None:
    """Remove from `below` what a whiteout hides: a path and everything in it, or the content of a folder."""
    folder, _, name = whiteout.path.rpartition("/")
    opaque = name == OPAQUE
    hidden = folder if opaque else posixpath.join(folder, name.removeprefix(WHITEOUT))
    for path in [path for path in below if path == hidden or path.startswith(f"{hidden}/")]:
        if not opaque or below[path].layer < whiteout.layer:
            del below[path]


def target(info: tarfile.TarInfo) -> str:
    """Return the path that a hard link points to."""
    return posixpath.normpath(info.linkname).lstrip("/")
