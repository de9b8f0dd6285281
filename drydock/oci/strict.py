"""Read an image manifest or an index, and refuse a document that is both (CVE-2021-41190). Pure.

A digest covers bytes, so a signature of a document that is an image and an index at once would vouch for two images:
clients may run either. Source: image-spec 1.1, manifest.md, image-index.md and descriptor.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from drydock.core.errors import RegistryError
from drydock.core.files import parse_json
from drydock.model.record import Digest

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS, INDEXES = (MANIFEST, DOCKER_MANIFEST), (INDEX, DOCKER_INDEX)
UNKNOWN = "unknown/unknown"
"""The platform that BuildKit writes for attestations, which no client runs."""
DEFAULT_VARIANTS = {"arm64": "v8", "amd64": "v1"}
"""Architecture → the variant that clients take a missing one for (containerd's platforms.Normalize)."""

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$", max_length=64)]
"""A word of a platform: messages show it."""
Size = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Part(BaseModel):
    """A part of a document: known names have the right type, other names are allowed, as the specification says."""

    model_config = ConfigDict(strict=True, extra="allow")


class _RunsOn(_Part):
    os: Word
    architecture: Word
    variant: Word | Literal[""] = ""


class _Descriptor(_Part):
    mediaType: str = Field(min_length=1)  # noqa: N815 - the specification's names, which errors show
    digest: Digest
    size: Size
    platform: _RunsOn | None = None


class _Document(_Part):
    schemaVersion: Literal[2]  # noqa: N815
    subject: _Descriptor | None = None


class _Image(_Document):
    config: _Descriptor
    layers: list[_Descriptor]


class _Index(_Document):
    manifests: list[_Descriptor]


def read(data: bytes, declared: str, where: str) -> tuple[dict[str, Any], str]:
    """Return the content and the media type of a manifest or an index.

    `declared` is the media type that the registry or a descriptor gives; if empty, the content must state it. Raises
    RegistryError unless the content is exactly one of the two, and of that type.
    """
    content = parse_json(data, where, RegistryError)
    media_type = declared or str(content.get("mediaType", ""))
    if media_type not in (*MANIFESTS, *INDEXES):
        raise RegistryError(f"{where}: expected an image or an index, found the media type {media_type!r}")
    _one_kind(content, media_type, where)
    try:
        (_Index if media_type in INDEXES else _Image).model_validate(content)
    except ValidationError as error:
        raise RegistryError(*(_sentence(item, where) for item in error.errors())) from error
    return content, media_type


def entries(content: Mapping[str, Any], where: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the entries of an index that `read` returned, each with its platform: OS/ARCHITECTURE[/VARIANT].

    Raises RegistryError if an entry is an index itself or has no platform.
    """
    for item in content["manifests"]:
        if item["mediaType"] not in MANIFESTS:
            raise RegistryError(f"{where}: {item['digest']}: expected an image, found {item['mediaType']!r}")
        if not item.get("platform"):
            raise RegistryError(f"{where}: {item['digest']}: found an entry without platform, expected one")
    return [(_platform(item["platform"]), item) for item in content["manifests"]]


def _platform(platform: Mapping[str, str]) -> str:
    variant = platform.get("variant", "")
    if variant == DEFAULT_VARIANTS.get(platform["architecture"]):
        variant = ""
    return "/".join(part for part in (platform["os"], platform["architecture"], variant) if part)


def _one_kind(content: Mapping[str, Any], media_type: str, where: str) -> None:
    """Raise RegistryError if the content has another kind than its media type, or two kinds."""
    stated = content.get("mediaType", "")
    if stated not in ("", media_type):
        raise RegistryError(f"{where}: the registry says {media_type}, the content says {stated!r}")
    if "manifests" in content and ("layers" in content or "config" in content):
        raise RegistryError(f"{where}: the content is an image and an index at once: clients may choose either")


def _sentence(item: Any, where: str) -> str:
    path = ".".join(str(part) for part in item["loc"])
    return f"{where}: {path}: {item['msg']}"
