"""A base's manifest and configuration, and layers on top of it → those of the new image. Pure.

The base's layers are named as they are. Nothing in them is read, and what the base's documents say is checked first:
anyone may have written them. Source: image-spec 1.1, manifest.md, config.md and layer.md.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import tarfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from drydock.core.errors import RegistryError
from drydock.core.files import format_compact_json
from drydock.oci import image_layout, strict
from drydock.oci.layers import OPAQUE
from drydock.oci.reference import DIGEST

TYPES = {
    "application/vnd.oci.image.layer.v1.tar": "",
    "application/vnd.oci.image.layer.v1.tar+gzip": "+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "+zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "+zstd",
}
"""Media type of a layer → the end of the type by which the new manifest names it: the OCI one of the same bytes."""
FOREIGN = ("nondistributable", "foreign")
"""Words in the types of layers that stay with their vendor, who names an address instead."""
MOST_LAYERS = 127
"""Layers of an image that an engine mounts (moby, layer/layer_store.go, maxLayerDepth is 125; overlayfs takes more)."""
LARGEST_LAYER = 128 << 30
"""Bytes of a layer that is believed: the largest published images with CUDA have layers of 10 GB."""
_INHERITED = ("architecture", "os", "os.version", "os.features", "variant", "author")


class AddedLayer(NamedTuple):
    """A layer to add: a tar file, uncompressed, since compressors of other versions give other bytes."""

    data: bytes
    created_by: str
    """What the image's history says of it."""

    @property
    def digest(self) -> str:
        """Return the digest of the blob, and of its content."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"

    def descriptor(self) -> dict[str, Any]:
        """Return the descriptor of the blob."""
        return {"mediaType": image_layout.LAYER, "digest": self.digest, "size": len(self.data)}


class ExtendedImage(NamedTuple):
    """A new image: its manifest's content, and its configuration."""

    manifest: dict[str, Any]
    config: bytes


def make_tar(folders: Mapping[str, int], files: Mapping[str, bytes], epoch: int) -> bytes:
    """Return a tar file of folders, each with its mode, and of files. Nothing of the layers below stays in a folder.

    All belongs to root and its group. Parents that are not named are left as they are in the layers below.
    """
    parts: list[bytes] = []
    for name, mode in sorted({**_list_parents(files, folders), **folders}.items()):
        parts.append(_header(f"{name}/", mode, epoch, tarfile.DIRTYPE))
        if name in folders:
            parts.append(_header(f"{name}/{OPAQUE}", 0o644, epoch))
    for name, content in sorted(files.items()):
        parts += [_header(name, 0o644, epoch, size=len(content)), content, bytes(-len(content) % tarfile.BLOCKSIZE)]
    return b"".join((*parts, bytes(2 * tarfile.BLOCKSIZE)))


def _list_parents(files: Iterable[str], folders: Collection[str]) -> dict[str, int]:
    """Return the folders of files that are within other folders. A parent outside could be a link in the base."""
    parents = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    return {name: 0o755 for name in parents if any(name.startswith(f"{folder}/") for folder in folders)}


def _header(name: str, mode: int, epoch: int, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime, entry.type, entry.size = mode, epoch, kind, size
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8")


def list_layers(manifest: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the descriptors of a base's layers, by their OCI types.

    Raises RegistryError for layers that may not be copied, that no engine can read, or that are larger than any.
    """
    problems = [problem for layer in manifest["layers"] if (problem := _find_problem(layer))]
    if problems:
        raise RegistryError(*(f"{where}: {problem}" for problem in problems))
    return [
        {
            "mediaType": f"{image_layout.LAYER}{TYPES[layer['mediaType']]}",
            "digest": layer["digest"],
            "size": layer["size"],
        }
        for layer in manifest["layers"]
    ]


def _find_problem(layer: Mapping[str, Any]) -> str:
    name, media_type = layer["digest"], layer["mediaType"]
    if any(word in media_type for word in FOREIGN) or layer.get("urls"):
        return f"{name}: a layer that only its vendor may distribute; no registry may be given a copy of it"
    if media_type not in TYPES:
        return f"{name}: expected a layer of files, found {media_type!a:.100}"
    if layer["size"] > LARGEST_LAYER:
        return f"{name}: the manifest says {layer['size']} bytes, expected at most {LARGEST_LAYER}"
    return ""


def extend_image(
    layers: Sequence[Mapping[str, Any]],
    base: Mapping[str, Any],
    added: Sequence[AddedLayer],
    settings: Mapping[str, Any],
    epoch: int,
    where: str,
) -> ExtendedImage:
    """Return the image of a base's layers and configuration, with layers added and other settings.

    `epoch`, in Unix seconds, is when it was created. Raises RegistryError for a base that contradicts itself.
    """
    diff_ids = _read_diff_ids(base, len(layers), where)
    if len(layers) + len(added) > MOST_LAYERS:
        text = (
            f"{where}: {len(layers)} layers, and {len(added)} more are more than the {MOST_LAYERS} that engines mount"
        )
        raise RegistryError(text)
    created = dt.datetime.fromtimestamp(epoch, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = {name: base[name] for name in _INHERITED if name in base} | {
        "created": created,
        "config": dict(settings),
        "rootfs": {"type": "layers", "diff_ids": [*diff_ids, *(layer.digest for layer in added)]},
    }
    if history := _read_history(base, len(layers)):
        config["history"] = [*history, *({"created": created, "created_by": layer.created_by} for layer in added)]
    data = format_compact_json(config).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    manifest = {
        "schemaVersion": 2,
        "mediaType": strict.MANIFEST,
        "config": {"mediaType": image_layout.CONFIG, "digest": digest, "size": len(data)},
        "layers": [*layers, *(layer.descriptor() for layer in added)],
    }
    return ExtendedImage(manifest, data)


def _read_diff_ids(base: Mapping[str, Any], expected: int, where: str) -> list[str]:
    rootfs = base.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diff_ids, list) or not all(isinstance(item, str) and DIGEST.fullmatch(item) for item in diff_ids):
        raise RegistryError(f"{where}: its configuration names no content of its layers (rootfs.diff_ids)")
    if len(diff_ids) != expected:
        raise RegistryError(f"{where}: its configuration names {len(diff_ids)} layers, and its manifest {expected}")
    return diff_ids


def _read_history(base: Mapping[str, Any], expected: int) -> list[dict[str, Any]]:
    """Return a base's history if it fits its layers; else none, which is allowed (config.md, "history")."""
    history = base.get("history")
    if not isinstance(history, list) or not all(isinstance(item, dict) for item in history):
        return []
    return history if sum(not item.get("empty_layer") for item in history) == expected else []
