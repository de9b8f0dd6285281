"""Read an image from a registry: manifests, referrers and blobs, each checked against its digest. IO."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.errors import RegistryError, UntrustedError
from drydock.core.files import loads, parse_json
from drydock.inputs import indexes
from drydock.inputs.store import default_store
from drydock.oci.reference import Reference, parse
from drydock.publish.push import Repository
from drydock.registry.manifests import EMPTY, Manifest


class Referrer(NamedTuple):
    """A document attached to an image."""

    media_type: str
    data: bytes
    manifest: str
    """Digest of the artifact that contains the document: signatures sign this digest."""

    def json(self) -> Any:
        """Return the parsed document. Raises UntrustedError if it is not JSON."""
        try:
            return loads(self.data)
        except ValueError as error:
            raise UntrustedError(f"{self.manifest} ({self.media_type}): invalid JSON: {error}") from error


class Image(NamedTuple):
    """An image in a registry."""

    repository: Repository
    where: Reference
    """The reference as the user gave it."""
    manifest: Manifest
    """The manifest that the reference names: an index, or the manifest of the only platform."""
    platforms: Mapping[str, Manifest]

    @property
    def digest(self) -> str:
        """Return the digest of the manifest that the reference names."""
        return self.manifest.digest

    def config(self, platform: str) -> dict[str, Any]:
        """Return a platform's image configuration."""
        digest = self.platforms[platform].content["config"]["digest"]
        return parse_json(self.bytes(digest), f"{self.where}: {digest}", RegistryError)

    def bytes(self, digest: str) -> bytes:
        """Return a small blob's bytes."""
        return b"".join(self.repository.blobs.pull(digest))

    def blob(self, digest: str) -> Path:
        """Return a blob's file in the store; fetch it first if needed."""
        sha256 = digest.removeprefix("sha256:")
        store = default_store()
        if not store.has(sha256):
            store.add(self.repository.blobs.pull(digest, self._size(digest)), sha256, digest)
        return store.path(sha256)

    def _size(self, digest: str) -> int:
        """Return a layer's size as a manifest of the image names it. Raises RegistryError."""
        layers = (layer for manifest in self.platforms.values() for layer in manifest.content.get("layers", ()))
        size = next((layer.get("size") for layer in layers if layer["digest"] == digest), None)
        if not isinstance(size, int):
            raise RegistryError(f"{self.where}: {digest}: no manifest names the size of this layer")
        return size

    def documents(self, digest: str, types: Collection[str]) -> tuple[Referrer, ...]:
        """Return the documents of these artifact types attached to a digest. Raises RegistryError or UntrustedError."""
        found = [item for item in self.repository.manifests.referrers(digest) if self._artifact_type(item) in types]
        return tuple(self._document(digest, str(item["digest"])) for item in found)

    def signatures(self, digest: str) -> int:
        """Return the number of signatures of a digest, by anyone."""
        found = self.repository.manifests.referrers(digest)
        return sum("sigstore" in self._artifact_type(item) for item in found)

    def _artifact_type(self, item: Mapping[str, Any]) -> str:
        """Return the artifact type of an entry in the list of referrers.

        For registries without the referrers API, cosign writes the type of the empty config into the list. The type is
        then read from the artifact itself.
        """
        listed = str(item.get("artifactType") or EMPTY)
        if listed != EMPTY:
            return listed
        manifest = self.repository.manifests.find(str(item["digest"]))
        return str(manifest.content.get("artifactType", "")) if manifest else ""

    def _document(self, subject: str, digest: str) -> Referrer:
        manifest = self.repository.manifests.find(digest)
        if manifest is None:
            raise UntrustedError(f"{self.where}: {digest} is listed as a referrer, but the registry does not have it")
        content = manifest.content
        if content.get("subject", {}).get("digest") != subject:
            raise UntrustedError(f"{self.where}: {digest} is listed as a referrer, but its subject is another digest")
        layer = content["layers"][0]
        return Referrer(str(content["artifactType"]), self.bytes(layer["digest"]), digest)


def open_image(text: str, *, insecure: bool = False) -> Image:
    """Return the image that a reference names. Raises InputError, RegistryError or CredentialsError."""
    where = parse(text)
    access = indexes.access(indexes.read_indexes(), os.environ)
    repository = Repository(where._replace(tag="", digest=""), access, insecure=insecure)
    manifest = repository.manifests.find(where.name)
    if manifest is None:
        raise RegistryError(f"{where}: image not found in the registry", hint=_tags(repository))
    return Image(repository, where, manifest, dict(_platforms(repository, manifest)))


def _platforms(repository: Repository, manifest: Manifest) -> list[tuple[str, Manifest]]:
    content = manifest.content
    if "manifests" not in content and "config" not in content:
        raise RegistryError(
            f"{repository.where}: {manifest.digest}: expected an image or an index, found {manifest.media_type}"
        )
    if "manifests" not in content:
        digest = content["config"]["digest"]
        config = parse_json(b"".join(repository.blobs.pull(digest)), f"{repository.where}: {digest}", RegistryError)
        return [(f"{config['os']}/{config['architecture']}", manifest)]
    found = []
    for item in content["manifests"]:
        platform = "{os}/{architecture}".format(**item.get("platform", {"os": "unknown", "architecture": "unknown"}))
        part = repository.manifests.find(item["digest"])
        if part is None:
            raise RegistryError(
                f"{repository.where}: the index lists {item['digest']} ({platform}), but the registry does not have it"
            )
        if not platform.startswith("unknown"):  # BuildKit's attestations have the platform unknown/unknown
            found.append((platform, part))
    return found


def _tags(repository: Repository) -> str:
    names = [tag for tag in repository.manifests.tags() if not tag.startswith("sha256-")]
    return f"existing tags: {', '.join(names[-10:])}" if names else "the repository has no tags"
