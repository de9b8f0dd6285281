"""Turns a layer's tar file into an OCI image layout on disk, and reads such layouts.

The layout's bytes depend on the tar file and the arguments alone. IO.
Source of the format: OCI image specification 1.1, image-layout.md, manifest.md, config.md.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.core.files import file_sha256, link_or_copy, parse_any_json, read_bounded
from drydock.oci.reference import DIGEST

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LARGEST = 16 << 20
"""Bytes of a manifest or a config."""
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_layout(folder: Path, layer: Path, platform: str, epoch: int, author: str, below: Sequence[Path] = ()) -> str:
    """Write the layout of an image, moving the uncompressed tar file of its last layer into it; return its digest.

    `below` are the layers under it, uncompressed too: blobs of another layout, which are linked.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for blob in below:
        link_or_copy(blob, blobs / blob.name)
    top = layer.rename(blobs / file_sha256(layer))
    config, manifest = _make_image_documents([*below, top], platform, epoch, author)
    write_document(folder, CONFIG, config)
    descriptor = write_document(folder, MANIFEST, manifest)
    write_index(folder, descriptor)
    return str(descriptor["digest"])


def write_document(folder: Path, media_type: str, data: bytes) -> dict[str, Any]:
    """Write a manifest or a config into a layout's folder of blobs, which exists; return its descriptor."""
    descriptor = _make_descriptor(media_type, data)
    path_of_blob(folder, descriptor["digest"]).write_bytes(data)
    return descriptor


def write_index(folder: Path, descriptor: Mapping[str, Any]) -> None:
    """Write the files that make a folder of blobs an OCI layout of one image."""
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_bytes(_encode_canonical_json({"schemaVersion": 2, "manifests": [descriptor]}))


def read_digest(folder: Path) -> str:
    """Return the digest of a layout's only manifest."""
    return str(_read_index_entry(folder)["digest"])


def _read_index_entry(folder: Path) -> dict[str, Any]:
    """Return the descriptor of a layout's only manifest."""
    descriptor: dict[str, Any]
    (descriptor,) = parse_any_json((folder / "index.json").read_text())["manifests"]
    return descriptor


def find_image(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return digest and manifest of the only image in a layout, which an index may lead to. Raises ValueError."""
    pending = [read_digest(folder)]
    while pending:
        digest = pending.pop(0)
        if path_of_blob(folder, digest).is_file():  # an index also names the images of other platforms
            content = parse_any_json(_read_small_blob(path_of_blob(folder, digest)))
            if "manifests" not in content:
                return digest, content
            pending += [item["digest"] for item in content["manifests"]]
    raise ValueError(f"{folder}: no image in it")


def path_of_blob(folder: Path, digest: str) -> Path:
    """Return the path of a blob. Raises ValueError for an invalid digest, which could lead out of the folder."""
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"{folder}: invalid digest {digest!r}")
    return folder / "blobs" / digest.replace(":", "/")


def _read_small_blob(path: Path) -> bytes:
    """Return a manifest or a config. Raises OSError for a pipe, or a file that is too large."""
    return read_bounded(path, LARGEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a layout's only manifest."""
    manifest: dict[str, Any] = parse_any_json(_read_small_blob(path_of_blob(folder, read_digest(folder))))
    return manifest


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config of a layout's only manifest."""
    config: dict[str, Any] = parse_any_json(
        _read_small_blob(path_of_blob(folder, read_manifest(folder)["config"]["digest"]))
    )
    return config


def read_descriptors(folder: Path) -> list[dict[str, Any]]:
    """Return the descriptors of a layout's manifest, its config and its layers."""
    manifest = read_manifest(folder)
    return [_read_index_entry(folder), manifest["config"], *manifest["layers"]]


def is_sized_layout(folder: Path) -> bool:
    """Tell whether a layout has its manifest and config, and layers of the listed sizes; reads no layer."""
    return _has_fitting_blobs(folder, lambda path, item: path.stat().st_size == item["size"])


def is_sound_layout(folder: Path, unread: Collection[str] = ()) -> bool:
    """Tell whether a layout has its manifest, config and layers, and each but the `unread` matches its digest."""
    return _has_fitting_blobs(
        folder, lambda _, item: item["digest"] in unread or _is_blob_intact(folder, item["digest"])
    )


def _has_fitting_blobs(folder: Path, fits: Callable[[Path, Mapping[str, Any]], bool]) -> bool:
    """Tell whether manifest and config match their digests, and each blob fits its descriptor."""
    try:
        if not (
            _is_blob_intact(folder, read_digest(folder))
            and _is_blob_intact(folder, read_manifest(folder)["config"]["digest"])
        ):
            return False
        return all(fits(path_of_blob(folder, item["digest"]), item) for item in read_descriptors(folder))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # whatever damaged JSON leads to
        return False


def _is_blob_intact(folder: Path, digest: str) -> bool:
    return file_sha256(path_of_blob(folder, digest)) == digest.removeprefix("sha256:")


def is_intact_layout(folder: Path) -> bool:
    """Tell whether a layout has every blob that its index leads to, and every blob in it matches its digest.

    An index of several platforms may name images that the layout lacks, but not all of them.
    """
    try:
        is_complete = (folder / "oci-layout").is_file() and _leads_to_blobs(folder, read_digest(folder))
        return is_complete and all(file_sha256(path) == path.name for path in (folder / "blobs" / "sha256").iterdir())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _leads_to_blobs(folder: Path, digest: str) -> bool:
    content = parse_any_json(_read_small_blob(path_of_blob(folder, digest)))
    if "manifests" not in content:
        return all(path_of_blob(folder, item["digest"]).is_file() for item in (content["config"], *content["layers"]))
    inner = [item["digest"] for item in content["manifests"] if path_of_blob(folder, item["digest"]).is_file()]
    return bool(inner) and all(_leads_to_blobs(folder, item) for item in inner)


def _make_image_config(platform: str, epoch: int, author: str, diff_ids: Sequence[str]) -> dict[str, Any]:
    system, _, architecture = platform.partition("/")
    created = dt.datetime.fromtimestamp(epoch, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": architecture,
        "os": system,
        "config": {"Env": [PATH], "Cmd": ["bash"]},
        "rootfs": {"type": "layers", "diff_ids": [*diff_ids]},
        "history": [{"created": created, "created_by": author}] * len(diff_ids),
    }


def _make_image_documents(layers: Sequence[Path], platform: str, epoch: int, author: str) -> tuple[bytes, bytes]:
    """Return config and manifest of an image whose layers are blobs."""
    layer_descriptors = [
        {"mediaType": LAYER, "digest": f"sha256:{path.name}", "size": path.stat().st_size} for path in layers
    ]
    config = _encode_canonical_json(
        _make_image_config(platform, epoch, author, [str(layer["digest"]) for layer in layer_descriptors])
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _make_descriptor(CONFIG, config),
        "layers": layer_descriptors,
    }
    return config, _encode_canonical_json(manifest)


def _make_descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def _encode_canonical_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
