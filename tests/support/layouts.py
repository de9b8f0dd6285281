"""Small OCI layouts for tests of code that reads images."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import zstandard

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "+gzip": lambda data: gzip.compress(data, mtime=0),
    "+zstd": zstandard.ZstdCompressor().compress,
}
"""Suffix of a layer's media type → the function that compresses it."""


def tar(entries: Iterable[tuple[str, bytes, Mapping[str, Any]]]) -> bytes:
    """Return a tar file of entries: name, content and other fields of TarInfo (mode, type, …)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, fields in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            for field, value in fields.items():
                setattr(entry, field, value)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def write(folder: Path, *layers: bytes, config: Mapping[str, Any] | None = None, suffix: str = "+zstd") -> Path:
    """Write the layout of an image with these layers, the lowest first; return its folder."""
    media_type, compress = f"application/vnd.oci.image.layer.v1.tar{suffix}", COMPRESSIONS[suffix]
    descriptors = [{"mediaType": media_type, **put(folder, compress(layer))} for layer in layers]
    return name(folder, {"config": put(folder, dumped(config or {})), "layers": descriptors})


def name(folder: Path, manifest: Mapping[str, Any]) -> Path:
    """Write a manifest, and an index that names only it; return the layout's folder."""
    index = {"schemaVersion": 2, "manifests": [put(folder, json.dumps(manifest, indent=2).encode())]}
    (folder / "index.json").write_bytes(dumped(index))
    (folder / "oci-layout").write_bytes(dumped({"imageLayoutVersion": "1.0.0"}))
    return folder


def put(folder: Path, data: bytes) -> dict[str, Any]:
    """Write a blob; return the digest and size for its descriptor."""
    sha256 = hashlib.sha256(data).hexdigest()
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / sha256).write_bytes(data)
    return {"digest": f"sha256:{sha256}", "size": len(data)}


def dumped(value: Any) -> bytes:
    """Return JSON without spaces, as BuildKit writes a config."""
    return json.dumps(value, separators=(",", ":")).encode()
