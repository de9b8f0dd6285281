"""Turns one layer's tar file into an OCI image layout on disk, and reads such layouts.

The layout's bytes depend on the tar file and the arguments alone. IO.
Source of the format: OCI image specification 1.1, image-layout.md, manifest.md, config.md.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from pathlib import Path
from typing import Any

from drydock.core.files import file_sha256

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_layout(folder: Path, layer: Path, platform: str, epoch: int, author: str) -> str:
    """Write the layout of a one-layer image, moving the uncompressed tar file into it; return its digest."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer_sha256 = file_sha256(layer)
    size = layer.stat().st_size
    layer.rename(blobs / layer_sha256)
    config = _blob(blobs, CONFIG, _config(platform, epoch, author, f"sha256:{layer_sha256}"))
    layers = [{"mediaType": LAYER, "digest": f"sha256:{layer_sha256}", "size": size}]
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
    descriptor = _blob(blobs, MANIFEST, manifest)
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_bytes(_json({"schemaVersion": 2, "manifests": [descriptor]}))
    return str(descriptor["digest"])


def read_digest(folder: Path) -> str:
    """Return the digest of a layout's only manifest."""
    return str(_entry(folder)["digest"])


def _entry(folder: Path) -> dict[str, Any]:
    """Return the descriptor of a layout's only manifest."""
    descriptor: dict[str, Any] = json.loads((folder / "index.json").read_text())["manifests"][0]
    return descriptor


def blob(folder: Path, digest: str) -> Path:
    """Return the path of a blob."""
    return folder / "blobs" / digest.replace(":", "/")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a layout's only manifest."""
    manifest: dict[str, Any] = json.loads(blob(folder, read_digest(folder)).read_bytes())
    return manifest


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config of a layout's only manifest."""
    config: dict[str, Any] = json.loads(blob(folder, read_manifest(folder)["config"]["digest"]).read_bytes())
    return config


def descriptors(folder: Path) -> list[dict[str, Any]]:
    """Return the descriptors of a layout's manifest, its config and its layers."""
    manifest = read_manifest(folder)
    return [_entry(folder), manifest["config"], *manifest["layers"]]


def sound(folder: Path) -> bool:
    """Tell whether a layout has its manifest, config and layers, and each matches its digest."""
    try:
        return all(file_sha256(blob(folder, item["digest"])) == item["digest"][7:] for item in descriptors(folder))
    except (OSError, ValueError, LookupError):
        return False


def intact(folder: Path) -> bool:
    """Tell whether a layout has its index, and every blob in it matches its digest."""
    if not (folder / "index.json").is_file() or not (folder / "oci-layout").is_file():
        return False
    return all(file_sha256(blob) == blob.name for blob in (folder / "blobs" / "sha256").iterdir())


def _config(platform: str, epoch: int, author: str, diff_id: str) -> dict[str, Any]:
    system, _, architecture = platform.partition("/")
    created = dt.datetime.fromtimestamp(epoch, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": architecture,
        "os": system,
        "config": {"Env": [PATH], "Cmd": ["bash"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": created, "created_by": author}],
    }


def _blob(blobs: Path, media_type: str, value: dict[str, Any]) -> dict[str, Any]:
    """Write a JSON blob; return its descriptor."""
    data = _json(value)
    sha256 = hashlib.sha256(data).hexdigest()
    (blobs / sha256).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": len(data)}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
