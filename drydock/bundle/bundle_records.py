"""The records and media types of a bundle. Pure data.

index.json lists the bundle's own manifest, each image, its attached documents, its inputs, and its base if that is an
image. bundle.json, the config of the bundle's own manifest, relates them to each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StringConstraints

from drydock.inputs.models import ModelFolder
from drydock.model.locked import LockedFile
from drydock.model.record import Digest, Identifier, Platform, Record, Sha256
from drydock.oci.manifest import Manifest, to_manifest
from drydock.registry.manifests import EMPTY, MANIFEST

BUNDLE = "application/vnd.drydock.bundle.v1+json"
INPUTS = "application/vnd.drydock.inputs.v1+json"
REPOSITORY_FILE = "application/vnd.drydock.repository-file.v1"
WHEEL = "application/vnd.drydock.wheel.v1+zip"
SDIST = "application/vnd.drydock.sdist.v1+gzip"
SOURCE = "application/vnd.drydock.source.v2.git-pack"
"""The objects of a commit and its submodules, which prove themselves (gitformat-pack(5))."""
MODEL = "application/vnd.drydock.model.v1+json"
MODEL_FILE = "application/vnd.drydock.model-file.v1"
DEB = "application/vnd.debian.binary-package"
"""Registered with IANA."""
ARCHIVE = "application/vnd.drydock.source-archive.v1"
"""A release archive: tar.gz or tar.bz2."""
STORED = (WHEEL, SDIST, DEB, ARCHIVE)
"""Media types of files that the store keeps under their sha256."""
TITLE = "org.opencontainers.image.title"
NAME = "org.opencontainers.image.ref.name"
COMMIT = "io.drydock.commit"


class BundledImage(Record):
    """One variant for one platform."""

    variant: Identifier
    platform: Platform
    digest: Digest
    """Digest of the image's manifest."""
    inputs_sha256: Sha256
    """Checksum of all inputs of the build."""
    inputs: Digest
    """Digest of the manifest that lists the input files."""
    base: Digest | None
    """Digest of the base, if it is an image from a registry."""
    documents: tuple[Digest, ...]
    """Digests of the manifests of the attached documents."""
    supplied: Mapping[str, tuple[LockedFile, ...]]
    """Context → files that only their vendor may distribute; the bundle does not contain them."""


class BundleOrigin(Record):
    """The repository that the bundle was made from."""

    repository: str
    commit: str
    changed: bool
    """Whether tracked files differed from the commit."""


class BundledModel(Record):
    """A model, whose files are blobs of the archive."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
    """Name of its folder."""
    folder: ModelFolder


class Bundle(Record):
    """bundle.json: what a bundle contains."""

    schema_: Literal[1] = Field(alias="schema")
    origin: BundleOrigin
    images: tuple[BundledImage, ...]
    models: tuple[BundledModel, ...] = ()


class Blob(NamedTuple):
    """A blob of the archive, in memory or in a file."""

    digest: str
    size: int
    source: Path | bytes

    def descriptor(self, media_type: str, **annotations: str) -> dict[str, Any]:
        """Return an OCI descriptor of the blob."""
        descriptor: dict[str, Any] = {"mediaType": media_type, "digest": self.digest, "size": self.size}
        return {**descriptor, "annotations": annotations} if annotations else descriptor


def make_blob(data: bytes) -> Blob:
    """Return a blob with these bytes."""
    return Blob(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), data)


def make_artifact(
    kind: str, layers: list[dict[str, Any]], *, config: dict[str, Any] | None = None, subject: Manifest | None = None
) -> Manifest:
    """Return the manifest of an OCI artifact that is not an image."""
    content: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": config or make_blob(b"{}").descriptor(EMPTY),
        "layers": layers,
    }
    if subject:
        content["subject"] = subject.descriptor()
    return to_manifest(content)


def make_title_annotation(text: str) -> dict[str, str]:
    """Return the annotation with the file name that oras gives to a blob."""
    return {TITLE: text}
