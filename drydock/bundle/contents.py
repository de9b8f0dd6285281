"""What a bundle holds, and under which media types. Pure data.

index.json names the bundle itself, each image, what is attached to each, what it is rebuilt from, and its base where
that is an image; bundle.json, the configuration of the bundle's own manifest, says which is which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from drydock.model.locked import LockedFile
from drydock.model.record import Digest, Identifier, Platform, Record, Sha256
from drydock.registry.manifests import EMPTY, MANIFEST, Manifest, to_manifest

BUNDLE = "application/vnd.drydock.bundle.v1+json"
INPUTS = "application/vnd.drydock.inputs.v1+json"
REPOSITORY_FILE = "application/vnd.drydock.repository-file.v1"
WHEEL = "application/vnd.drydock.wheel.v1+zip"
SDIST = "application/vnd.drydock.sdist.v1+gzip"
SOURCE = "application/vnd.drydock.source.v1.tar"
DEB = "application/vnd.debian.binary-package"
"""Registered with IANA."""
STORED = (WHEEL, SDIST, DEB)
"""Types of what lies in the store under its own hash."""
TITLE = "org.opencontainers.image.title"
NAME = "org.opencontainers.image.ref.name"
COMMIT = "io.drydock.commit"


class BundledImage(Record):
    """One variant for one platform."""

    variant: Identifier
    platform: Platform
    digest: Digest
    """The image's manifest."""
    inputs_sha256: Sha256
    """Of everything that it was built from."""
    inputs: Digest
    """The manifest that lists the files of the store."""
    base: Digest | None
    """The base, where it is an image of a registry."""
    documents: tuple[Digest, ...]
    """The manifests of what is attached to it."""
    supplied: Mapping[str, tuple[LockedFile, ...]]
    """Files that only their vendor may hand out: named, and not in the bundle."""


class BundleOrigin(Record):
    """The repository that it was made from."""

    repository: str
    commit: str
    changed: bool
    """Whether tracked files differed from the commit."""


class Bundle(Record):
    """bundle.json."""

    schema_: Literal[1] = Field(alias="schema")
    origin: BundleOrigin
    images: tuple[BundledImage, ...]


class Blob(NamedTuple):
    """Bytes of the archive, and where they are."""

    digest: str
    size: int
    source: Path | bytes

    def described(self, media_type: str, **annotations: str) -> dict[str, Any]:
        """Return how a manifest points to it."""
        descriptor: dict[str, Any] = {"mediaType": media_type, "digest": self.digest, "size": self.size}
        return {**descriptor, "annotations": annotations} if annotations else descriptor


def blob(data: bytes) -> Blob:
    """Return the blob of these bytes."""
    return Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), data)


def artifact(
    kind: str, layers: list[dict[str, Any]], *, config: dict[str, Any] | None = None, subject: Manifest | None = None
) -> Manifest:
    """Return the manifest of something that is no image."""
    content: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": config or {"mediaType": EMPTY, "digest": blob(b"{}").digest, "size": 2},
        "layers": layers,
    }
    return to_manifest(content | ({"subject": subject.descriptor()} if subject else {}))


def titled(text: str) -> dict[str, str]:
    """Return the annotation under which oras writes a blob to a file."""
    return {TITLE: text}
