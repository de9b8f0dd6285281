"""Compares two OCI layouts by layer, path and field. IO (reads only)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from drydock.core.differences import find_differences
from drydock.core.errors import BuildError, UntrustedError
from drydock.core.tar import members, open_tar
from drydock.oci import image_layout

TAR = re.compile(r"\.tar(?:[.+](?:gzip|zstd))?$")
"""End of the media type of a layer that is an archive of files."""
GZIP, ZSTD = re.compile(rb"\x1f\x8b"), re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
"""What compressed data begins with (RFC 1952, RFC 8878; the second form of zstd is a frame to skip)."""


class LayoutDifference(NamedTuple):
    """One difference: in the manifest, in the config, or in a file of a layer."""

    where: str
    """manifest, config or layer N; the lowest layer is 0."""
    path: str
    """The file in the layer, or the key path in the manifest or config."""
    field: str
    """What differs: digest, value, content, order, presence, or a key of FIELDS."""
    first: str
    second: str


FIELDS: Mapping[str, Callable[[tarfile.TarInfo], str]] = {
    "type": lambda entry: entry.type.decode(),
    "mode": lambda entry: oct(entry.mode),
    "uid": lambda entry: str(entry.uid),
    "gid": lambda entry: str(entry.gid),
    "owner": lambda entry: f"{entry.uname}:{entry.gname}",
    "size": lambda entry: str(entry.size),
    "mtime": lambda entry: str(entry.mtime),
    "link": lambda entry: entry.linkname,
    "device": lambda entry: f"{entry.devmajor}:{entry.devminor}",
    "attributes": lambda entry: json.dumps(entry.pax_headers, sort_keys=True),
}
"""The fields of a tar entry that affect a layer's digest, except the content."""


def compare_layouts(first: Path, second: Path) -> tuple[LayoutDifference, ...]:
    """Return all differences of two layouts of one image each; empty if and only if the digests are equal.

    Raises BuildError for a damaged layout: what its index says of it would mean nothing.
    """
    for layout in (first, second):
        if not image_layout.is_sound_layout(layout):
            raise BuildError(
                f"{layout}: damaged: a blob is missing or does not match its digest",
                hint="run the same command again; `./inv build` makes a damaged layout again",
            )
    digests = [image_layout.read_digest(layout) for layout in (first, second)]
    if digests[0] == digests[1]:
        return ()
    manifests = image_layout.read_manifest(first), image_layout.read_manifest(second)
    differences = [LayoutDifference("manifest", "", "digest", *digests), *_compare_values("manifest", *manifests)]
    differences += _compare_values("config", image_layout.read_config(first), image_layout.read_config(second))
    layers = zip_longest(manifests[0]["layers"], manifests[1]["layers"])
    for number, (first_layer, second_layer) in enumerate(layers):
        if first_layer and second_layer and first_layer["digest"] != second_layer["digest"]:
            differences += _compare_layers(
                f"layer {number}",
                (image_layout.path_of_blob(first, first_layer["digest"]), first_layer),
                (image_layout.path_of_blob(second, second_layer["digest"]), second_layer),
            )
    return tuple(differences)


Blob = tuple[Path, Mapping[str, Any]]
"""A blob's file and descriptor."""


def _compare_layers(where: str, first: Blob, second: Blob) -> Iterator[LayoutDifference]:
    first_entries, second_entries = (
        _read_entry_fields(path, descriptor["mediaType"]) for path, descriptor in (first, second)
    )
    for path, entry, its_other in sorted(find_differences(first_entries, second_entries), key=itemgetter(0)):
        yield from _compare_entries(where, path, entry, its_other)
    if first_entries.keys() == second_entries.keys():
        yield from _compare_order(where, list(first_entries), list(second_entries))


def _compare_order(where: str, first: list[str], second: list[str]) -> Iterator[LayoutDifference]:
    """Yield the first entry that is at another position."""
    for position, path in enumerate(first):
        if second[position] != path:
            yield LayoutDifference(where, path, "order", str(position), str(second.index(path)))
            return


def _compare_entries(
    where: str, path: str, first: Mapping[str, str] | None, second: Mapping[str, str] | None
) -> Iterator[LayoutDifference]:
    if first is None or second is None:
        yield LayoutDifference(where, path, "presence", _describe_presence(first), _describe_presence(second))
        return
    for field, first_value, second_value in find_differences(first, second):
        yield LayoutDifference(where, path, field, first_value or "", second_value or "")


def _read_entry_fields(path: Path, media_type: str) -> dict[str, dict[str, str]]:
    entries = {}
    with closing(open_decompressed(path, media_type)) as stream, open_tar(stream, "r|") as archive:
        for entry in members(archive):
            entries[entry.name] = {name: read(entry) for name, read in FIELDS.items()}
            content = archive.extractfile(entry) if entry.isreg() else None
            entries[entry.name]["content"] = hashlib.file_digest(content, "sha256").hexdigest() if content else ""  # type: ignore[arg-type]
    return entries


def open_decompressed(path: Path, media_type: str) -> Any:
    """Open a layer's blob and return its uncompressed tar stream.

    Its first bytes say how it is compressed, as engines do it: Docker's media types end in `.tar.gzip`, and say so of
    layers that are not compressed, too (containerd, archive/compression). Raises UntrustedError for what is no tar.
    """
    if not TAR.search(media_type):
        raise UntrustedError(f"sha256:{path.name}: expected a layer of files, found {media_type!a}")
    with path.open("rb") as file:
        start = file.read(4)
    if ZSTD.match(start):
        frames = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True, closefd=True)
        return io.BufferedReader(frames, 1 << 20)
    return gzip.open(path, "rb") if GZIP.match(start) else path.open("rb")


def _compare_values(where: str, first: Any, second: Any, path: str = "") -> Iterator[LayoutDifference]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted({*first, *second}):
            yield from _compare_values(where, first.get(key), second.get(key), f"{path}.{key}" if path else key)
    elif isinstance(first, list) and isinstance(second, list):
        for number, (first_item, second_item) in enumerate(zip_longest(first, second)):
            yield from _compare_values(where, first_item, second_item, f"{path}[{number}]")
    elif first != second:
        yield LayoutDifference(where, path, "value", json.dumps(first), json.dumps(second))


def _describe_presence(entry: object) -> str:
    return "absent" if entry is None else "present"
