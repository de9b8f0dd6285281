"""An OCI image's layers, entry by entry, and what a container sees of them in the end. IO (reads only).

Source: OCI image specification 1.1, layer.md ("Whiteouts").
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from drydock.oci.diff import decompressed

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


class Entry(NamedTuple):
    """An entry of a layer, while it is read: its content is to be had before the next one is asked for."""

    layer: int
    path: str
    """Without a slash at its beginning; empty for the root."""
    info: tarfile.TarInfo
    content: Any
    """A file to be read; None for what is no regular file."""

    @property
    def hides(self) -> bool:
        """Tell whether it removes something of the layers below."""
        return posixpath.basename(self.path).startswith(WHITEOUT)


class OfLayer(Protocol):
    """Whatever remembers which layer it came from."""

    @property
    def layer(self) -> int:
        """Return the layer's number, the base's first being 0."""


Kept = TypeVar("Kept", bound=OfLayer)


def entries(manifest: Mapping[str, Any], blob: Callable[[str], Path]) -> Iterator[Entry]:
    """Return every entry of every layer, the lowest layer first, given where the blobs lie."""
    for number, descriptor in enumerate(manifest["layers"]):
        with (
            closing(decompressed(blob(descriptor["digest"]), descriptor["mediaType"])) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            for info in archive:
                path = posixpath.normpath(info.name).lstrip("/")
                yield Entry(
                    number, "" if path == "." else path, info, archive.extractfile(info) if info.isreg() else None
                )


def hide(below: dict[str, Kept], whiteout: Entry) -> None:
    """Remove what a whiteout hides of those below: one path with all in it, or a folder's whole content."""
    folder, _, name = whiteout.path.rpartition("/")
    opaque = name == OPAQUE
    gone = folder if opaque else posixpath.join(folder, name.removeprefix(WHITEOUT))
    for path in [path for path in below if path == gone or path.startswith(f"{gone}/")]:
        if not opaque or below[path].layer < whiteout.layer:
            del below[path]


def target(info: tarfile.TarInfo) -> str:
    """Return the path that a hard link names."""
    return posixpath.normpath(info.linkname).lstrip("/")
