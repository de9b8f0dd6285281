"""The base of an image: a root file system made by drydock, or an image from a registry. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from drydock.model.names import AbsolutePath, ImageReference, OneLine, PackageName, Release, Suite, make_text_constraint
from drydock.model.record import Digest, Record

GLIBC = {
    "bullseye": "2.31",
    "bookworm": "2.36",
    "trixie": "2.41",
    "ubuntu:20.04": "2.31",
    "ubuntu:22.04": "2.35",
    "ubuntu:24.04": "2.39",
    "ubi:9": "2.34",
    "openeuler:22.03": "2.34",
    "openeuler:24.03": "2.38",
}
"""The glibc of a release, by its libc6 or glibc package. For another release, a base gives `glibc`."""

Glibc = Annotated[
    str,
    make_text_constraint(r"^2\.[0-9]+$", "a version of glibc in quotes, such as 2.28"),
    Field(
        description="Optional: version of the base's glibc, quoted; not needed for a release that drydock knows.",
        exclude_if=lambda version: not version,  # the key must not change locks that were made before there was one
    ),
]


class DebianBase(Record):
    """A root file system that mmdebstrap makes from locked packages; needs no container registry."""

    kind: Literal["debian"]
    """Selects this kind of base."""
    suite: Suite = Field(description="Required: Debian release by code name, such as bookworm.")
    packages: tuple[PackageName, ...] = Field(
        description="Required: packages to install in addition to the essential ones."
    )
    glibc: Glibc = ""


class ImageBase(Record):
    """An image from a registry, by digest."""

    kind: Literal["image"]
    """Selects this kind of base."""
    reference: ImageReference = Field(description="Required: name and tag, without digest, such as ubuntu:24.04.")
    digest: Digest | None = Field(default=None, description="Optional: published digest; the registry's wins.")
    source: OneLine = Field(default="", description="Optional: where the digest was published.")
    unresolved: OneLine = Field(default="", description="Optional: why no digest is known.")
    release: Release = Field(
        description="Required: distribution inside, such as ubuntu:22.04; it determines the glibc."
    )
    glibc: Glibc = ""
    python: AbsolutePath = Field(
        default="/usr/bin/python3", description="Optional: interpreter in the image that runs vLLM and the entrypoint."
    )
    adopted: bool = Field(
        default=False,
        description="Optional: whether `adopt` wrote this base. Its digest is then locked, wherever the tag is.",
        exclude_if=lambda adopted: not adopted,  # the key must not change locks of other bases
    )
    written_to: ImageReference | None = Field(
        default=None,
        description="Optional: where `adopt` wrote the image, such as ghcr.io/acme/vllm:TAG; `run` pulls it.",
        exclude_if=lambda written_to: written_to is None,  # as above
    )

    @model_validator(mode="after")
    def _has_digest(self) -> Self:
        if self.adopted and self.digest is None:
            raise ValueError("a digest with adopted: true: `./inv adopt` writes both")
        if self.written_to and not self.adopted:
            raise ValueError("adopted: true with written_to: `./inv adopt` writes both")
        return self

    @property
    def tag(self) -> str:
        """Return the tag that the reference names; empty if it names none."""
        return self.reference.rpartition("/")[2].partition(":")[2]


Base = Annotated[DebianBase | ImageBase, Field(discriminator="kind")]
