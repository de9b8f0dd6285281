"""What a registry holds of an image: manifests, referrers, blobs; every byte against its digest. IO."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.errors import RegistryError, UntrustedError
from drydock.inputs import indexes
from drydock.inputs.store import default_store
from drydock.oci.reference import Reference, parse
from drydock.publish.push import Repository
from drydock.registry.manifests import EMPTY, Manifest


class Referrer(NamedTuple):
    """Something that refers to an image."""

    media_type: str
    data: bytes
    manifest: str
    """Digest of the artifact that carries it; what a signature of it signs."""

    def json(self) -> Any:
        """Return what it says. Raises UntrustedError where it is no JSON."""
        try:
            return json.loads(self.data)
        except ValueError as error:
            raise UntrustedError(f"{self.manifest} ({self.media_type}): not JSON: {error}") from error


class Image(NamedTuple):
    """An image of a registry."""

    repository: Repository
    where: Reference
    """As it was asked for."""
    manifest: Manifest
    """What the reference names: an index, or the one platform's manifest."""
    platforms: Mapping[str, Manifest]

    @property
    def digest(self) -> str:
        """Return the digest of what the reference names."""
        return self.manifest.digest

    def config(self, platform: str) -> dict[str, Any]:
        """Return a platform's image configuration."""
        value: dict[str, Any] = json.loads(self.bytes(self.platforms[platform].content["config"]["digest"]))
        return value

    def bytes(self, digest: str) -> bytes:
        """Return a small blob."""
        return b"".join(self.repository.blobs.pull(digest))

    def blob(self, digest: str) -> Path:
        """Return a blob's file in the store, fetched unless it is there."""
        sha256 = digest.removeprefix("sha256:")
        store = default_store()
        if not store.has(sha256):
            store.add(self.repository.blobs.pull(digest), sha256, digest)
        return store.path(sha256)

    def documents(self, digest: str, kinds: Mapping[str, str]) -> tuple[Referrer, ...]:
        """Return what refers to a digest, of these artifact types. Raises RegistryError or UntrustedError."""
        found = (item for item in self.repository.manifests.referrers(digest) if self._kind(item) in kinds)
        return tuple(self._document(digest, str(item["digest"])) for item in found)

    def signatures(self, digest: str) -> int:
        """Return the number of signatures that refer to a digest, whoever made them."""
        found = self.repository.manifests.referrers(digest)
        return sum("sigstore" in self._kind(item) for item in found)

    def _kind(self, item: Mapping[str, Any]) -> str:
        """Return the artifact type of what refers: the artifact's own where the list names its empty config only.

        So does the list that cosign writes at registries without the referrers API.
        """
        listed = str(item.get("artifactType") or EMPTY)
        if listed != EMPTY:
            return listed
        manifest = self.repository.manifests.find(str(item["digest"]))
        return str(manifest.content.get("artifactType", "")) if manifest else ""

    def _document(self, subject: str, digest: str) -> Referrer:
        manifest = self.repository.manifests.find(digest)
        if manifest is None:
            raise UntrustedError(f"{self.where}: {digest} is said to refer to it, and the registry does not hold that")
        content = manifest.content
        if content.get("subject", {}).get("digest") != subject:
            raise UntrustedError(f"{self.where}: {digest} is listed as referring to it, and refers to something else")
        layer = content["layers"][0]
        return Referrer(str(content["artifactType"]), self.bytes(layer["digest"]), digest)


def open_image(text: str, *, insecure: bool = False) -> Image:
    """Return what a reference names. Raises InputError, RegistryError or CredentialsError."""
    where = parse(text)
    access = indexes.access(indexes.read_indexes(), os.environ)
    repository = Repository(where._replace(tag="", digest=""), access, insecure=insecure)
    manifest = repository.manifests.find(where.name)
    if manifest is None:
        raise RegistryError(f"{where}: the registry has no such image", hint=_tags(repository))
    return Image(repository, where, manifest, dict(_platforms(repository, manifest)))


def _platforms(repository: Repository, manifest: Manifest) -> list[tuple[str, Manifest]]:
    content = manifest.content
    if "manifests" not in content and "config" not in content:
        raise RegistryError(
            f"{repository.where}: {manifest.digest}: neither an image nor an index ({manifest.media_type})"
        )
    if "manifests" not in content:
        config = json.loads(b"".join(repository.blobs.pull(content["config"]["digest"])))
        return [(f"{config['os']}/{config['architecture']}", manifest)]
    found = []
    for item in content["manifests"]:
        platform = "{os}/{architecture}".format(**item.get("platform", {"os": "unknown", "architecture": "unknown"}))
        part = repository.manifests.find(item["digest"])
        if part is None:
            raise RegistryError(f"{repository.where}: {item['digest']} ({platform}) is in the index and nowhere else")
        if not platform.startswith("unknown"):  # BuildKit's own attestations
            found.append((platform, part))
    return found


def _tags(repository: Repository) -> str:
    names = [tag for tag in repository.manifests.tags() if not tag.startswith("sha256-")]
    return f"its tags: {', '.join(names[-10:])}" if names else "there is no tag in that repository"
