"""A locked base image in the store: its layers as its registry has them, for one platform. IO."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drydock.config.mirrors import read_mirrors
from drydock.core.console import byte_progress
from drydock.core.errors import FetchError, RegistryError, UnresolvedError
from drydock.core.paths import cache_home
from drydock.inputs import fetch, indexes
from drydock.inputs.image_digests import at_mirror
from drydock.inputs.store import Store, place_file, whole_folder
from drydock.model.locked import LockedImageBase
from drydock.oci import image_layout, strict
from drydock.oci.manifest import Manifest
from drydock.oci.reference import parse_reference
from drydock.registry.blobs import Blobs
from drydock.registry.manifests import Manifests
from drydock.registry.platform_images import PlatformImages
from drydock.registry.registry_client import Client


def fetch_base(
    base: LockedImageBase, platform: str, store: Store, *, offline: bool = False, env: Mapping[str, str] = os.environ
) -> Path:
    """Return the OCI layout of a locked base image; pull it from its registry or a mirror if needed.

    Raises UnresolvedError without a pinned digest, FetchError, RegistryError or CredentialsError.
    """
    if not base.digest:
        raise UnresolvedError(f"{base.reference}: the base has no pinned digest")
    final = fetch.image_folder(base.digest, platform, store)
    if image_layout.is_intact_layout(final):
        return final
    name = f"{base.reference}@{base.digest}"
    if offline:
        raise FetchError(f"not in the store: base {name}", hint="run `./inv fetch` of this row once with a network")
    where = parse_reference(at_mirror(name, read_mirrors(env)))
    access, state = indexes.make_index_access(indexes.read_indexes(env), env), cache_home(env) / "uploads"
    client = Client(where._replace(tag="", digest=""), access, env=env)
    manifests, blobs = Manifests(client, state), Blobs(client, state)
    top = manifests.find(base.digest)
    if top is None:
        raise RegistryError(f"{where}: image not found in the registry")
    images = PlatformImages(manifests, blobs, top, platform)
    if platform not in images.images:
        platform_names = ", ".join(PlatformImages(manifests, blobs, top).images)
        raise FetchError(f"{name}: platforms are {platform_names}, expected {platform}")
    manifest = images.images[platform]
    _store_blobs(blobs, manifest, store)
    config = store.path(manifest.content["config"]["digest"].removeprefix("sha256:")).read_bytes()
    strict.check_platform(strict.read_config(config, name), platform, name)
    with whole_folder(final, replace_unless=image_layout.is_intact_layout) as layout:
        for descriptor in _list_blobs(manifest):
            blob = store.path(descriptor["digest"].removeprefix("sha256:"))
            place_file(blob, image_layout.path_of_blob(layout, descriptor["digest"]), executable=False)
        for item in (*images.indexes, manifest):
            image_layout.path_of_blob(layout, item.digest).write_bytes(item.data)
        image_layout.write_index(layout, top.descriptor())
    return final


def _list_blobs(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the descriptors of an image's configuration and layers, each once: two layers may be equal."""
    descriptors = (manifest.content["config"], *manifest.content["layers"])
    return [*{descriptor["digest"]: descriptor for descriptor in descriptors}.values()]


def _store_blobs(blobs: Blobs, manifest: Manifest, store: Store) -> None:
    """Put an image's configuration and layers into the store; what is there is checked, and not fetched again."""
    descriptors = _list_blobs(manifest)
    with byte_progress() as bar:
        task = bar.add_task(f"fetching {len(descriptors)} blobs", total=sum(item["size"] for item in descriptors))
        for descriptor in descriptors:
            digest, size = descriptor["digest"], descriptor["size"]
            sha256 = digest.removeprefix("sha256:")
            if store.has(sha256):
                store.verify(sha256)
            else:
                store.add(blobs.pull(digest, size), sha256, digest)
            bar.advance(task, size)
