"""A built image, put into a registry with its layers compressed as an engine can read them."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests
import zstandard

KEPT = "zstd"
"""Layers as BuildKit wrote them."""
AS_BUILT = ""
"""Layers as they are, whatever their compression."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def push(layout: Path, host: str, name: str, compression: str = "gzip", *, tag: str = "") -> str:
    """Put the image of a layout into a registry without TLS, and tag it; return its name by digest.

    `compression`: gzip, zstd as it was built, or whatever it was built with.
    """
    manifest = json.loads(_blob(layout, json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]))
    if "manifests" in manifest:
        manifest = json.loads(_blob(layout, manifest["manifests"][0]["digest"]))
    base = f"http://{host}/v2/{name}"
    _upload(base, _blob(layout, manifest["config"]["digest"]))
    change: Callable[[bytes], bytes] = _as_gzip if compression not in (KEPT, AS_BUILT) else bytes
    kinds = [compression or layer["mediaType"].rpartition("+")[2] for layer in manifest["layers"]]
    blobs = [change(_blob(layout, layer["digest"])) for layer in manifest["layers"]]
    layers = [_layer(base, blob, kind) for blob, kind in zip(blobs, kinds, strict=True)]
    text = json.dumps({**manifest, "layers": layers}).encode()
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    for reference in filter(None, (digest, tag)):
        requests.put(
            f"{base}/manifests/{reference}", data=text, headers={"Content-Type": MANIFEST}, timeout=60
        ).raise_for_status()
    return f"{host}/{name}@{digest}"


def _layer(base: str, data: bytes, compression: str) -> dict[str, Any]:
    digest = _upload(base, data)
    return {
        "mediaType": f"application/vnd.oci.image.layer.v1.tar+{compression}",
        "digest": digest,
        "size": len(data),
    }


def _as_gzip(data: bytes) -> bytes:
    if data.startswith(_GZIP):
        return data
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(data) if data.startswith(_ZSTD) else data
    return gzip.compress(plain, compresslevel=1, mtime=0)


def _blob(layout: Path, digest: str) -> bytes:
    return (layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()


def _upload(base: str, data: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    begun = requests.post(f"{base}/blobs/uploads/", timeout=60)
    begun.raise_for_status()
    where = urljoin(base, begun.headers["Location"])
    requests.put(where, params={"digest": digest}, data=data, timeout=300).raise_for_status()
    return digest
