"""Where an image starts: a root file system made here, or an image of a registry. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from drydock.model.record import Digest, Record


class DebianBase(Record):
    """A root file system that mmdebstrap makes from locked packages; needs no container registry."""

    kind: Literal["debian"]
    """This kind of base."""
    suite: str = Field(description="Required: Debian release by code name, such as bookworm.")
    packages: tuple[str, ...] = Field(description="Required: packages beside the essential ones.")


class ImageBase(Record):
    """An image of a registry, by digest."""

    kind: Literal["image"]
    """This kind of base."""
    reference: str = Field(description="Required: name and tag, without digest, such as ubuntu:24.04.")
    digest: Digest | None = Field(default=None, description="Optional: a digest somebody published; lock resolves it.")
    source: str = Field(default="", description="Optional: where the digest was read.")
    unresolved: str = Field(default="", description="Optional: why there is no digest, when there is none.")
    release: str = Field(description="Required: the distribution inside, such as ubuntu:22.04; it gives the glibc.")
    python: str = Field(
        default="/usr/bin/python3", description="Optional: the interpreter inside that runs vLLM and the entrypoint."
    )


Base = Annotated[DebianBase | ImageBase, Field(discriminator="kind")]
