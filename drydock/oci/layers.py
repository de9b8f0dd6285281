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


class LayeredPaths(dict[str, Item]):
    """What is at each path of an image, by folders: a whiteout costs what it hides, however many paths there are."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, set[str]] = {}
        """Folder → the names in it."""
        self._emptied: set[tuple[int, str]] = set()
        """Layer and folder of each whiteout of a folder's content."""

    def __setitem__(self, path: str, item: Item) -> None:
        super().__setitem__(path, item)
        while path:
            folder, _, name = path.rpartition("/")
            names = self._names.setdefault(folder, set())
            if name in names:
                break
            names.add(name)
            path = folder

    def remove(self, path: str) -> None:
        """Remove a path and everything in it."""
        folder, _, name = path.rpartition("/")
        if name not in self._names.get(folder, ()):
            return
        for inner in self._list_within(path):
            self.pop(inner, None)
            self._names.pop(inner, None)
        self._names[folder].remove(name)

    def empty_folder(self, folder: str, layer: int) -> None:
        """Remove what lower layers have in a folder."""
        if (layer, folder) in self._emptied:
            return
        self._emptied.add((layer, folder))
        for path in self._list_within(folder):
            if path in self and self[path].layer < layer:
                del self[path]

    def _list_within(self, path: str) -> list[str]:
        """Return a path, and everything in it."""
        paths = [path]
        for folder in paths:  # which grows
            paths += [posixpath.join(folder, name) for name in self._names.get(folder, ())]
        return paths


def apply_whiteout(below: LayeredPaths[Item], whiteout: Entry) -> None:
    """Remove from `below` what a whiteout hides: a path and everything in it, or the content of a folder."""
    folder, _, name = whiteout.path.rpartition("/")
    if name == OPAQUE:
        below.empty_folder(folder, whiteout.layer)
    elif hidden := name.removeprefix(WHITEOUT):
        below.remove(posixpath.join(folder, hidden))


def find_link_target(info: tarfile.TarInfo) -> str:
    """Return the path that a hard link points to."""
    return posixpath.normpath(info.linkname).lstrip("/")
