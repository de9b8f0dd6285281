"""The records of images/<variant>/lock.json: what goes into an image, by hash. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from drydock.model.record import Digest, Identifier, Platform, Record, Sha256

Brought = Mapping[str, Path]
"""Context → the folder that an operator brought for it."""
NOTHING: Brought = MappingProxyType({})


class LockedDeb(Record):
    name: str
    version: str
    architecture: str
    filename: str
    """Path below the mirror's root, pool/main/…; which mirror serves it is the machine's own configuration."""
    size: int
    sha256: Sha256


class LockedWheel(Record):
    name: str
    version: str
    filename: str
    size: int
    sha256: Sha256


class LockedDebianBase(Record):
    kind: Literal["debian"]
    suite: str
    snapshot: str
    """When it was resolved, as snapshot archives write it: 20261121T041500Z."""
    digest: Digest | None
    """Manifest of the OCI layout made from the packages; null where no machine of its architecture made it yet."""
    packages: tuple[LockedDeb, ...]
    bootstrap: tuple[LockedDeb, ...]
    """The packages that mmdebstrap itself runs from, so that its version is pinned too."""


class LockedImageBase(Record):
    kind: Literal["image"]
    reference: str
    digest: Digest | None
    verified: bool
    """Whether the registry itself confirmed the digest."""
    source: str


class LockedSource(Record):
    """Source code by what it is named by: a git commit, or a source distribution's hash."""

    name: Identifier
    repository: str = ""
    commit: str | None = None
    sdist: LockedWheel | None = None
    verified: bool = False
    """Whether it was fetched, and so is what it claims to be."""
    source: str


class LockedFile(Record):
    """A file that an operator brought."""

    filename: str
    size: int
    sha256: Sha256


class LockedImage(Record):
    """The digest that two builds agreed upon, and what made it."""

    digest: Digest
    inputs_sha256: Sha256
    """Of everything that went in: lock, Dockerfile, profile, entrypoint. Other inputs make another digest."""
    buildkit: str
    buildx: str


class LockedPlatform(Record):
    base: Annotated[LockedDebianBase | LockedImageBase, Field(discriminator="kind")]
    layers: Mapping[str, tuple[LockedWheel, ...]]
    """Layer name → its wheels, sorted by name."""
    tools: tuple[LockedWheel, ...]
    """Used while building, absent from the image: uv."""
    build: tuple[LockedWheel, ...] = ()
    """What compiling needs and the image does not."""
    sources: tuple[LockedSource, ...] = ()
    """What is compiled."""
    supplied: Mapping[str, tuple[LockedFile, ...]] = {}
    """Context → the files that an operator brought when it was locked."""
    unresolved: Mapping[str, str] = {}
    """Context → why it could not be pinned. `build` refuses, unless told --allow-unlocked."""
    image: LockedImage | None = None


class Lock(Record):
    """images/<variant>/lock.json: the truth about what goes into an image."""

    schema_: Literal[1] = Field(alias="schema")
    variant: Identifier
    inputs_sha256: Sha256
    """Of the part of the variant that it was resolved from."""
    source_date_epoch: int
    compatibility_version: int
    """BuildKit's exporter behaviour that the digest depends on."""
    platforms: Mapping[Platform, LockedPlatform]
    content_sha256: Sha256
    """Of everything above, so that an edit by hand is seen."""
