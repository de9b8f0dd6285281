"""Reads the layers of an OCI image, entry by entry, and applies whiteouts. IO (reads only).

Source: OCI image specification 1.1, layer.md ("Whiteouts").
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar, cast

from drydock.core.errors import UntrustedError
from drydock.core.tar import members, open_tar
from drydock.oci.layout_diff import open_decompressed

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


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


class HasLayer(Protocol):
    """Anything that records which layer it comes from."""

    @property
    def layer(self) -> int:
        """Return the number of the layer; the lowest is 0."""


Item = TypeVar("Item", bound=HasLayer)


def read_layer_entries(manifest: Mapping[str, Any], blob: Callable[[str], Path]) -> Iterator[Entry]:
    """Yield every entry of every layer, the lowest layer first; `blob` returns the file of a digest.

    Raises UntrustedError for a layer that is damaged, larger than any image, or has sparse files, as no build of ours
    writes them.
    """
    for number, descriptor in enumerate(manifest["layers"]):
        try:
            with (
                closing(open_decompressed(blob(descriptor["digest"]), descriptor["mediaType"])) as stream,
                open_tar(cast("IO[bytes]", stream), "r|") as archive,
            ):
                for info in members(archive):
                    if info.issparse():
                        raise tarfile.ReadError("found a sparse file, expected none")
                    path = posixpath.normpath(info.name).lstrip("/")
                    content = archive.extractfile(info) if info.isreg() else None
                    yield Entry(number, "" if path == "." else path, info, content)
        except tarfile.TarError as error:
            raise UntrustedError(f"layer {descriptor['digest']}: invalid: {error}") from error


def apply_whiteout(below: dict[str, Item], whiteout: Entry) -> None:
    """Remove from `below` what a whiteout hides: a path and everything in it, or the content of a folder."""
    folder, _, name = whiteout.path.rpartition("/")
    opaque = name == OPAQUE
    hidden = folder if opaque else posixpath.join(folder, name.removeprefix(WHITEOUT))
    for path in [path for path in below if path == hidden or path.startswith(f"{hidden}/")]:
        if not opaque or below[path].layer < whiteout.layer:
            del below[path]


def find_link_target(info: tarfile.TarInfo) -> str:
    """Return the path that a hard link points to."""
    return posixpath.normpath(info.linkname).lstrip("/")
