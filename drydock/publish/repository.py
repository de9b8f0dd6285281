"""A repository in a registry: what is pushed to it, its tags, and the documents attached to its images. IO."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.config.server_access import Access
from drydock.core.errors import RegistryError, TagError, UntrustedError
from drydock.core.files import disk_full, hold_lock_file, parse_any_json, write_atomically
from drydock.core.paths import cache_home
from drydock.model.record import Record
from drydock.oci import strict
from drydock.oci.manifest import Manifest, to_manifest
from drydock.oci.reference import Reference
from drydock.publish import tags
from drydock.registry.blobs import BlobContent, Blobs, Pushed
from drydock.registry.manifests import EMPTY, MANIFEST, Manifests
from drydock.registry.registry_client import Client


class PublishedTag(Record):
    """The result for one tag."""

    tag: str
    was: str | None
    """The digest that the tag named before; null if the tag is new."""
    moves: bool
    """Whether the tag is set or moved; false if it already names the image."""


class Referrer(NamedTuple):
    """A document attached to an image."""

    media_type: str
    data: bytes
    manifest: str
    """Digest of the artifact that contains the document: signatures sign this digest."""

    def json(self) -> Any:
        """Return the parsed document. Raises UntrustedError if it is not JSON."""
        try:
            return parse_any_json(self.data)
        except ValueError as error:
            raise UntrustedError(f"{self.manifest} ({self.media_type}): invalid JSON: {error}") from error


def describe_bytes(data: bytes) -> dict[str, Any]:
    """Return the digest and size of a blob, for its descriptor."""
    return {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


class Repository:
    """A repository in a registry, and the local state of pushes to that registry."""

    def __init__(self, where: Reference, access: Access, *, insecure: bool = False, state: Path | None = None) -> None:
        folder = (state or cache_home()) / "uploads"
        self.where = where
        self.client = Client(where, access, insecure=insecure)
        self.blobs = Blobs(self.client, folder)
        self.manifests = Manifests(self.client, folder)
        self._known = folder / where.host.replace(":", "_") / "blobs"
        self._lock = folder / where.host.replace(":", "_") / where.repository / "tags.lock"

    def push_blob(self, source: Path | BlobContent, digest: str) -> Pushed:
        """Push a blob; mount it if another repository of the registry is known to have it."""
        location_file = self._find_location_file(digest)
        mount_from = location_file.read_text() if location_file.is_file() else ""
        pushed = self.blobs.push(source, digest, mount_from)
        write_atomically(location_file, self.where.repository)
        return pushed

    def note_blob(self, digest: str, repository: str) -> None:
        """Note that another repository of the registry has a blob, so that it is mounted and not uploaded."""
        write_atomically(self._find_location_file(digest), repository)

    def _find_location_file(self, digest: str) -> Path:
        """Return the file that records which repository has a blob."""
        return self._known / digest.replace(":", "-")

    def refer(self, subject: Manifest, media_type: str, data: bytes, name: str) -> Manifest:
        """Attach a document to a manifest, as an OCI artifact, and return the artifact's manifest."""
        contents = {blob: self.push_bytes(blob) for blob in (b"{}", data)}
        layer = {"mediaType": media_type, "annotations": {"org.opencontainers.image.title": name}, **contents[data]}
        artifact = to_manifest(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "artifactType": media_type,
                "config": {"mediaType": EMPTY, **contents[b"{}"]},
                "layers": [layer],
                "subject": subject.descriptor(),
                "annotations": {"org.opencontainers.image.title": name},
            }
        )
        self.manifests.refer(artifact)
        return artifact

    def push_bytes(self, data: bytes) -> dict[str, Any]:
        """Push a small blob; return the digest and size for its descriptor."""
        descriptor = describe_bytes(data)
        folder = Path(tempfile.gettempdir())
        with disk_full(folder), tempfile.NamedTemporaryFile(prefix="drydock-blob-", dir=folder) as file:
            file.write(data)
            file.flush()
            self.blobs.push(Path(file.name), descriptor["digest"])
        return descriptor

    def tag(self, manifest: Manifest, tag: str) -> PublishedTag:
        """Set a tag, and return the result; runs on one machine take turns.

        Raises TagError if it is a release tag that names another digest, before or after it is set: another machine may
        publish at the same time.
        """
        with hold_lock_file(self._lock):
            planned = self.plan_tag(manifest.digest, tag)
            if planned.moves:
                self.manifests.push(manifest, tag)
                current_digest = self.manifests.digest(tag)
                if current_digest != manifest.digest and tags.is_release(tag):
                    raise _release_exists(self.where.tagged(tag), current_digest, manifest.digest)
        return planned

    def plan_tag(self, digest: str, tag: str) -> PublishedTag:
        """Return what setting a tag would do. Raises TagError if it is a release tag that names another digest."""
        was = self.manifests.digest(tag)
        if was and was != digest and tags.is_release(tag):
            raise _release_exists(self.where.tagged(tag), was, digest)
        return PublishedTag(tag=tag, was=was, moves=was != digest)

    def attached(self, digest: str, types: Collection[str]) -> tuple[tuple[str, str], ...]:
        """Return artifact type and digest of each document of these types that is attached to a digest; reads none."""
        listed = ((self.artifact_type(item), str(item["digest"])) for item in self.manifests.referrers(digest))
        return tuple((kind, artifact) for kind, artifact in listed if kind in types)

    def documents(self, digest: str, types: Collection[str]) -> tuple[Referrer, ...]:
        """Return the documents of these artifact types attached to a digest. Raises RegistryError or UntrustedError."""
        return tuple(self.document(digest, kind, artifact) for kind, artifact in self.attached(digest, types))

    def artifact_type(self, item: Mapping[str, Any]) -> str:
        """Return the artifact type of an entry in the list of referrers.

        For registries without the referrers API, cosign writes the type of the empty config into the list. The type is
        then read from the artifact itself, if it is one that drydock can read.
        """
        listed = str(item.get("artifactType") or EMPTY)
        if listed != EMPTY or item.get("mediaType") not in strict.MANIFESTS:
            return listed
        manifest = self.manifests.find(str(item["digest"]))
        return str(manifest.content.get("artifactType", "")) if manifest else ""

    def document(self, subject: str, kind: str, digest: str) -> Referrer:
        """Return an attached document. Raises UntrustedError unless it is as it is listed, and is one document."""
        where = f"{self.where}: {digest}"
        received = self.manifests.receive(digest)
        if received is None:
            raise UntrustedError(f"{where} is listed as a referrer, but the registry does not have it")
        try:
            manifest = self.manifests.read(received, digest)
        except RegistryError as error:
            raise UntrustedError(*error.problems) from error
        content = manifest.content
        if (content.get("subject") or {}).get("digest") != subject:
            raise UntrustedError(f"{where} is listed as a referrer, but its subject is another digest")
        if content.get("artifactType", "") != kind:
            raise UntrustedError(f"{where} is listed as {kind}, but is {content.get('artifactType')!a}")
        if manifest.is_index or len(content["layers"]) != 1:
            raise UntrustedError(f"{where}: expected an artifact with one document")
        return Referrer(kind, b"".join(self.blobs.pull(content["layers"][0]["digest"])), digest)


def _release_exists(tag: Reference, was: str | None, digest: str) -> TagError:
    return TagError(
        f"{tag}: the release tag already names {was}, cannot move it to {digest}",
        hint="publish under another --release, or under a --channel, which can move",
    )
