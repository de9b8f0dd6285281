"""Records of images/<variant>/lock.json: the inputs of an image, by hash. Pure data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from drydock.model.names import (
    Architecture,
    ArchiveUrl,
    Commit,
    Distribution,
    Filename,
    ImageReference,
    OneLine,
    PackageName,
    PackageVersion,
    RelativePath,
    RepositoryUrl,
    Snapshot,
    Suite,
    Version,
)
from drydock.model.record import Count, Digest, Epoch, Identifier, Platform, Record, Sha256

SuppliedFolders = Mapping[str, Path]
"""Context → the folder that the operator named for it."""
NOTHING: SuppliedFolders = MappingProxyType({})


class LockedDeb(Record):
    name: PackageName
    version: PackageVersion
    architecture: Architecture
    filename: RelativePath
    """Path below the mirror's root, pool/main/…; each machine configures which mirror serves it."""
    size: Count
    sha256: Sha256


def source_of(deb: LockedDeb) -> str:
    """Return a package's source package: pool/main/g/glibc/libc6_2.36-9_amd64.deb is in the folder of its source."""
    return PurePosixPath(deb.filename).parent.name


def source_version(version: str) -> str:
    """Return a version without the +b1 that Debian appends when it builds a package again from the same source."""
    return re.sub(r"\+b\d+$", "", version)


class LockedWheel(Record):
    name: Distribution
    version: Version
    filename: Filename
    size: Count
    sha256: Sha256


class LockedDebianBase(Record):
    kind: Literal["debian"]
    suite: Suite
    snapshot: Snapshot
    """When it was resolved, in the format of snapshot archives: 20261121T041500Z."""
    digest: Digest | None
    """Manifest of the OCI layout made from the packages; null until a machine of its architecture has made it."""
    packages: tuple[LockedDeb, ...]
    bootstrap: tuple[LockedDeb, ...]
    """Packages that provide mmdebstrap itself, so that its version is pinned too."""


class LockedImageBase(Record):
    kind: Literal["image"]
    reference: ImageReference
    digest: Digest | None
    verified: bool
    """Whether the registry confirmed the digest."""
    source: OneLine


class LockedSource(Record):
    """Source code, identified by a git commit, or by the hash of a source distribution or a release archive."""

    name: Identifier
    repository: RepositoryUrl = ""
    commit: Commit | None = None
    sdist: LockedWheel | None = None
    url: ArchiveUrl = Field(default="", exclude_if=lambda url: not url)  # or it would change older locks
    """Address of a release archive."""
    sha256: Sha256 | None = Field(default=None, exclude_if=lambda sha256: sha256 is None)
    """Hash of that archive."""
    verified: bool = False
    """Whether its repository, index or server confirmed it."""
    source: OneLine

    @property
    def pin(self) -> str | None:
        """Return what identifies the code: a commit, or the hash of a file; None if it is not pinned."""
        return self.commit or self.sha256 or (self.sdist.sha256 if self.sdist else None)

    @property
    def filename(self) -> str:
        """Return the name of the release archive."""
        return self.url.rpartition("/")[2]


class LockedFile(Record):
    """A file that the operator supplied."""

    filename: Filename
    size: Count
    sha256: Sha256


class LockedPlatform(Record):
    base: Annotated[LockedDebianBase | LockedImageBase, Field(discriminator="kind")]
    layers: Mapping[Identifier, tuple[LockedWheel, ...]]
    """Layer name → its wheels, sorted by name."""
    tools: tuple[LockedWheel, ...]
    """Wheels used only while building: uv."""
    build: tuple[LockedWheel, ...] = ()
    """Wheels needed only to compile."""
    sources: tuple[LockedSource, ...] = ()
    """Source code to compile."""
    supplied: Mapping[Identifier, tuple[LockedFile, ...]] = {}
    """Context → the files that the operator supplied when it was locked."""
    unresolved: Mapping[Identifier, OneLine] = {}
    """Context → why it could not be pinned; `build` pins it where it can be reached, `build --locked` fails."""


class Lock(Record):
    """images/<variant>/lock.json: all inputs of an image, pinned."""

    schema_: Literal[1] = Field(alias="schema")
    variant: Identifier
    inputs_sha256: Sha256
    """Checksum of the part of the variant that the lock was resolved from."""
    source_date_epoch: Epoch
    compatibility_version: Count
    """Version of BuildKit's exporter behaviour, which the digest depends on."""
    platforms: Mapping[Platform, LockedPlatform]
    content_sha256: Sha256
    """Checksum of everything above, to detect edits by hand."""
