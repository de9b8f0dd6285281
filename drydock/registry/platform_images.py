"""The images of an index, or the only one: which platform has which manifest. IO.

The specification allows more than tools write: entries without a platform, indexes within indexes, entries of types
that are no images (image-spec 1.1, image-index.md: an unknown media type MUST NOT be an error). Those are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drydock.core.errors import RegistryError
from drydock.oci import strict
from drydock.oci.manifest import Manifest
from drydock.oci.reference import DIGEST
from drydock.registry.blobs import Blobs
from drydock.registry.manifests import Manifests

DEEPEST = 3
"""Indexes within one another. Each level costs a request, and no tool writes more than two."""
MOST_ENTRIES = 256
"""Manifests that are read of one index. Official images have 20."""


class PlatformImages:
    """The images that a manifest leads to. Those of other platforms than `only` are not read if the index names them.

    Raises RegistryError for what is no image, and for entries that the registry does not have.
    """

    def __init__(self, manifests: Manifests, blobs: Blobs, top: Manifest, only: str = "") -> None:
        self._manifests, self._blobs, self._only = manifests, blobs, only
        self._left = MOST_ENTRIES
        self.images: dict[str, Manifest] = {}
        """Platform → manifest; of two for one platform the first, which clients take."""
        self.indexes: list[Manifest] = []
        """Every index, those within others too."""
        where = f"{manifests.client.where}: {top.digest}"
        problem = strict.not_image(top.content)
        if problem:
            raise RegistryError(f"{where}: not an image, but {problem}")
        for platform, image in self._images_of(top, 1):
            self.images.setdefault(platform, image)
        if not self.images and not only:
            raise RegistryError(f"{where}: not an image: nothing in it is for a platform")

    def _images_of(self, manifest: Manifest, depth: int) -> Iterator[tuple[str, Manifest]]:
        if strict.not_image(manifest.content):
            return
        if not manifest.is_index:
            platform = self.config_platform(manifest)
            if platform != strict.UNKNOWN:
                yield platform, manifest
            return
        self.indexes.append(manifest)
        for entry in manifest.content["manifests"]:
            yield from self._images_of_entry(entry, depth)

    def _images_of_entry(self, entry: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Manifest]]:
        platform = strict.platform_of(entry.get("platform"))
        is_nested = entry["mediaType"] in strict.INDEXES
        if not (is_nested or entry["mediaType"] in strict.MANIFESTS) or not DIGEST.fullmatch(entry["digest"]):
            return
        if platform == strict.UNKNOWN or (platform and self._only not in ("", platform)):
            return
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            text = f"more than {MOST_ENTRIES} images, or {DEEPEST} indexes within one another"
            raise RegistryError(f"{self._manifests.client.where}: {entry['digest']}: {text}")
        manifest = self._manifests.listed(entry)
        if is_nested or not platform:
            yield from self._images_of(manifest, depth + 1)
        elif not strict.not_image(manifest.content):
            yield platform, manifest

    def config_platform(self, manifest: Manifest) -> str:
        """Return the platform that an image's configuration names; unknown/unknown if it names none."""
        digest = manifest.content["config"]["digest"]
        data = b"".join(self._blobs.pull(digest))
        config = strict.read_config(data, f"{self._manifests.client.where}: {digest}")
        return strict.platform_of(config) or strict.UNKNOWN
