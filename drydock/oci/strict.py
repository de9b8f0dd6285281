"""Read an image manifest or an index, and refuse a document that is both (CVE-2021-41190). Pure.

A digest covers bytes, so a signature of a document that is an image and an index at once would vouch for two images:
clients may run either. Source: image-spec 1.1, manifest.md, image-index.md and descriptor.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from drydock.core.errors import RegistryError
from drydock.core.files import parse_any_json, parse_json_object
from drydock.model.record import Digest

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS, INDEXES = (MANIFEST, DOCKER_MANIFEST), (INDEX, DOCKER_INDEX)
SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1"
"""Beginning of the two media types of Docker's first format, which registries and engines have removed."""
GENERIC = ("application/json", "application/octet-stream", "binary/octet-stream", "text/plain")
"""Types that file servers give to any manifest."""
CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
"""Media types of an image's configuration. A manifest with another one is an artifact (image-spec 1.1, manifest.md)."""
UNKNOWN = "unknown/unknown"
"""The platform that BuildKit writes for attestations, which no client runs."""
DEFAULT_VARIANTS = {"arm64": "v8", "amd64": "v1"}
"""Architecture → the variant that clients take a missing one for (containerd's platforms.Normalize)."""

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]*$", max_length=64)]
"""A word of a platform: messages show it. Images that were made by hand have empty ones."""
AnyDigest = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]+(?:[+._-][a-z0-9]+)*:[A-Za-z0-9=_-]+$", max_length=256)
]
"""A digest by any algorithm (image-spec 1.1, descriptor.md, "Digests")."""
Size = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Part(BaseModel):
    """A part of a document: known names have the right type, other names are allowed, as the specification says."""

    model_config = ConfigDict(strict=True, extra="allow")


class _RunsOn(_Part):
    os: Word | None = None
    architecture: Word | None = None
    variant: Word | None = None


class _Descriptor(_Part):
    mediaType: str = Field(min_length=1)  # noqa: N815 - the specification's names, which errors show
    digest: Digest
    size: Size
    platform: _RunsOn | None = None


class _Entry(_Descriptor):
    digest: AnyDigest


class _Document(_Part):
    schemaVersion: Literal[2]  # noqa: N815
    subject: _Descriptor | None = None


class _Image(_Document):
    config: _Descriptor
    layers: list[_Descriptor]


class _Index(_Document):
    manifests: list[_Entry]


class _Settings(_Part):
    Labels: dict[str, str | None] | None = None


class _Config(_RunsOn):
    created: str | None = None
    config: _Settings | None = None


def read_strict_manifest(data: bytes, declared: str, where: str) -> tuple[dict[str, Any], str]:
    """Return the content and the media type of a manifest or an index.

    `declared` is the media type that the registry or a descriptor gives; if empty, the content must state it. Raises
    RegistryError unless the content is exactly one of the two, and of that type.
    """
    content = parse_json_object(data, where, RegistryError)
    media_type = declared or str(content.get("mediaType", ""))
    if media_type.startswith(SCHEMA_1):
        text = f"{where}: an image in Docker's format of before 2016, schema 1, which engines no longer pull"
        raise RegistryError(text, hint="its publisher must build and push it again")
    if declared in GENERIC:
        text = f"{where}: the registry says that it is {declared}, not which manifest: engines do not pull it"
        raise RegistryError(text, hint="a proxy or file server before the registry must pass its Content-Type through")
    if media_type not in (*MANIFESTS, *INDEXES):
        raise RegistryError(f"{where}: expected an image or an index, found the media type {media_type!r}")
    _one_kind(content, media_type, where)
    _validate_document(_Index if media_type in INDEXES else _Image, content, where)
    return content, media_type


def read_config(data: bytes, where: str) -> dict[str, Any]:
    """Return an image's configuration; what may be null is left out, and a label without a value is empty.

    Raises RegistryError for another form than the specification's (image-spec 1.1, config.md).
    """
    content = parse_json_object(data, where, RegistryError)
    _validate_document(_Config, content, where)
    settings = {name: value for name, value in (content.get("config") or {}).items() if value is not None}
    settings["Labels"] = {name: value or "" for name, value in settings.get("Labels", {}).items()}
    return {name: value for name, value in content.items() if value is not None} | {"config": settings}


def is_index(data: bytes, declared: str) -> bool:
    """Tell whether bytes are meant as an index, by their declared type or by the type in them."""
    try:
        content = parse_any_json(data)
    except ValueError:
        content = None
    return declared in INDEXES or (isinstance(content, dict) and content.get("mediaType") in INDEXES)


def not_image(content: Mapping[str, Any]) -> str:
    """Return why a manifest or an index that `read_strict_manifest` returned is no image; empty if it may be one."""
    if "manifests" in content:
        types = {item["mediaType"] for item in content["manifests"]}
        if types.intersection((*MANIFESTS, *INDEXES)):
            return ""
        return f"an index that lists {', '.join(sorted(map(ascii, types))) or 'nothing'}"
    kind = content["config"]["mediaType"]
    if kind in CONFIGS:
        return ""
    return f"an artifact of type {(content.get('artifactType') or kind)!a}"


def platform_of(platform: Mapping[str, Any] | None) -> str:
    """Return OS/ARCHITECTURE[/VARIANT] of an entry's platform or an image's configuration; empty if one is missing."""
    system, architecture, variant = ((platform or {}).get(name) or "" for name in ("os", "architecture", "variant"))
    if not (system and architecture):
        return ""
    if variant == DEFAULT_VARIANTS.get(architecture):
        variant = ""
    return "/".join(part for part in (system, architecture, variant) if part)


def check_platform(config: Mapping[str, Any], platform: str, where: str) -> None:
    """Raise RegistryError unless a configuration is for the platform that an index says; a variant may be missing."""
    actual_platform = platform_of(config)
    if actual_platform.split("/")[:2] != platform.split("/")[:2]:
        raise RegistryError(f"{where}: the index says {platform}, the image is for {actual_platform or 'no platform'}")


def _validate_document(model: type[BaseModel], content: Mapping[str, Any], where: str) -> None:
    try:
        model.model_validate(content)
    except ValidationError as error:
        raise RegistryError(*(_format_schema_error(item, where) for item in error.errors())) from error


def _one_kind(content: Mapping[str, Any], media_type: str, where: str) -> None:
    """Raise RegistryError if the content has another kind than its media type, or two kinds."""
    stated = content.get("mediaType", "")
    if stated not in ("", media_type):
        raise RegistryError(f"{where}: the registry says {media_type}, the content says {stated!r}")
    if "manifests" in content and ("layers" in content or "config" in content):
        raise RegistryError(f"{where}: the content is an image and an index at once: clients may choose either")


def _format_schema_error(item: Any, where: str) -> str:
    path = ".".join(str(part) for part in item["loc"])
    return f"{where}: {path}: {item['msg']}"
