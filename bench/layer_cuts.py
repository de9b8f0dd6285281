"""The same image in more layers, to measure what layers cost a registry and an engine. IO."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from drydock.core.files import file_sha256, format_compact_json
from drydock.oci import image_layout
from drydock.oci.layout_diff import open_decompressed

LEVEL = 3
"""Of zstd, as in most rows of the matrix."""


class _Cut(NamedTuple):
    descriptor: dict[str, Any]
    diff_id: str
    """Digest of the uncompressed tar."""


def write_cut_layout(layout: Path, output: Path, largest: int) -> int:
    """Write a layout's image with its layers cut after `largest` uncompressed bytes; return the number of layers.

    Every layer is compressed again, so that two such images differ in the number of their layers only.
    """
    (output / "blobs" / "sha256").mkdir(parents=True)
    manifest, config = image_layout.read_manifest(layout), image_layout.read_config(layout)
    cuts = [cut for layer in manifest["layers"] for cut in _cut_layer(layout, layer, output, largest)]
    config |= {"rootfs": {"type": "layers", "diff_ids": [cut.diff_id for cut in cuts]}}
    config.pop("history", None)  # it has an entry for each layer
    document = image_layout.write_document(output, image_layout.CONFIG, format_compact_json(config).encode())
    manifest |= {"config": document, "layers": [cut.descriptor for cut in cuts]}
    content = format_compact_json(manifest).encode()
    image_layout.write_index(output, image_layout.write_document(output, image_layout.MANIFEST, content))
    return len(cuts)


def _cut_layer(layout: Path, layer: dict[str, Any], output: Path, largest: int) -> Iterator[_Cut]:
    with (
        closing(open_decompressed(image_layout.path_of_blob(layout, layer["digest"]), layer["mediaType"])) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        members = iter(archive)
        member = next(members, None)
        while member:
            part = output / "part"
            with part.open("wb") as file, tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as target:
                while member and target.offset <= largest:
                    target.addfile(member, archive.extractfile(member) if member.isreg() else None)
                    member = next(members, None)
            yield _compress_part(part, output)


def _compress_part(part: Path, output: Path) -> _Cut:
    diff_id, compressed = file_sha256(part), output / "compressed"
    with part.open("rb") as source, compressed.open("wb") as target:
        zstandard.ZstdCompressor(level=LEVEL, threads=-1).copy_stream(source, target)
    part.unlink()
    digest, size = f"sha256:{file_sha256(compressed)}", compressed.stat().st_size
    compressed.rename(image_layout.path_of_blob(output, digest))
    return _Cut({"mediaType": f"{image_layout.LAYER}+zstd", "digest": digest, "size": size}, f"sha256:{diff_id}")
