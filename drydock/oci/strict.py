"""Read an image manifest or an index, and refuse what another client could read in another way. Pure.

A digest covers bytes, so two clients agree about an image only if they read the bytes alike. What they may read
differently is an error here: a document that is an image and an index at once (CVE-2021-41190), a type that its content
does not have, a name twice or in another case (Go's decoder ignores case), two entries for one platform.
Source: image-spec 1.1, manifest.md, image-index.md and descriptor.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from drydock.core.errors import RegistryError
from drydock.core.files import loads
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
Names = Callable[[list[tuple[str, Any]]], dict[str, Any]]
"""Makes an object of its names and values, or refuses them."""
Size = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Part(BaseModel):
    """A part of a document: known names have the right type, other names are allowed, as the specification says."""

    model_config = ConfigDict(strict=True, extra="allow")


class _RunsOn(_Part):
    os: Word
    architecture: Word
    variant: Word | Literal[""] = ""
    os_version: str = Field(default="", alias="os.version")


class _Descriptor(_Part):
    mediaType: str = Field(min_length=1)  # noqa: N815 - the specification's names, which errors show
    digest: Digest
    size: Size
    platform: _RunsOn | None = None


class _Document(_Part):
    schemaVersion: Literal[2]  # noqa: N815
    mediaType: str = ""  # noqa: N815
    subject: _Descriptor | None = None


class _Image(_Document):
    config: _Descriptor
    layers: list[_Descriptor]


class _Index(_Document):
    manifests: list[_Descriptor]


_NAMES = frozenset(
    field.alias or name for kind in (_Image, _Index, _Descriptor, _RunsOn) for name, field in kind.model_fields.items()
)


def read(data: bytes, declared: str, where: str) -> tuple[dict[str, Any], str]:
    """Return the content and the media type of a manifest or an index.

    `declared` is the media type that the registry or a descriptor gives; if empty, the content must state it. Raises
    RegistryError unless the content is exactly one of the two, and of that type.
    """
    content = _json(data, where, _unambiguous)
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

    Raises RegistryError if an entry is an index itself or has no platform, or if two have the same.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    seen: set[tuple[str, str]] = set()
    for item in content["manifests"]:
        if item["mediaType"] not in MANIFESTS:
            raise RegistryError(f"{where}: {item['digest']}: expected an image, found {item['mediaType']!r}")
        if not item.get("platform"):
            raise RegistryError(f"{where}: {item['digest']}: the entry has no platform, so clients may choose it")
        key = (_platform(item["platform"]), _windows_version(item["platform"]))
        if key in seen and key[0] != UNKNOWN:
            raise RegistryError(
                f"{where}: the index has several entries for {key[0]}: clients may choose different images"
            )
        seen.add(key)
        found.append((key[0], item))
    return found


def config(data: bytes, where: str) -> dict[str, Any]:
    """Return an image's configuration. Raises RegistryError for a name twice, or a known one in another case."""
    content = _json(data, where, _once)
    settings = content.get("config") or {}
    if not isinstance(settings, dict):
        raise RegistryError(f"{where}: config: expected an object")
    for names, known in ((content, _CONFIG), (settings, _SETTINGS)):
        for name in names:
            if known.get(name.casefold(), name) != name:
                raise RegistryError(f"{where}: the name {name!r}, expected {known[name.casefold()]!r}: {_CASE}")
    return content


def _platform(platform: Mapping[str, str]) -> str:
    variant = platform.get("variant", "")
    if variant == DEFAULT_VARIANTS.get(platform["architecture"]):
        variant = ""
    return "/".join(part for part in (platform["os"], platform["architecture"], variant) if part)


def _windows_version(platform: Mapping[str, str]) -> str:
    """Return what tells apart the entries for Windows; clients on Linux ignore it."""
    return platform.get("os.version", "") if platform["os"] == "windows" else ""


def _one_kind(content: Mapping[str, Any], media_type: str, where: str) -> None:
    """Raise RegistryError if the content has another kind than its media type, or two kinds."""
    stated = content.get("mediaType", "")
    if stated not in ("", media_type):
        raise RegistryError(f"{where}: the registry says {media_type}, the content says {stated!r}")
    both = "manifests" in content and ("layers" in content or "config" in content)
    if both:
        raise RegistryError(f"{where}: the content is an image and an index at once: clients may choose either")


def _json(data: bytes, where: str, names: Names) -> dict[str, Any]:
    try:
        value = loads(data, names)
    except ValueError as error:
        raise RegistryError(f"{where}: invalid manifest: {error}") from error
    if not isinstance(value, dict):
        raise RegistryError(f"{where}: invalid manifest: expected an object, found {type(value).__name__}")
    return value


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for a name that occurs twice, or a known name in another case."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r} occurs twice")
        if name not in _NAMES and name.casefold() in _FOLDED:
            raise ValueError(f"the name {name!r}, expected {_FOLDED[name.casefold()]!r}: {_CASE}")
        found[name] = value
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for a name that occurs twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


_CASE = "some clients ignore case"
_CONFIG, _SETTINGS = (
    {name.casefold(): name for name in names.split()}
    for names in (
        "created author architecture os os.version os.features variant config rootfs history",
        "User Env Entrypoint Cmd Volumes WorkingDir Labels StopSignal Healthcheck OnBuild Shell ExposedPorts",
    )
)
"""Names of an image's configuration, and of the settings in it, in lower case → as they are written."""


_FOLDED = {name.casefold(): name for name in _NAMES}


def _sentence(item: Any, where: str) -> str:
    path = ".".join(str(part) for part in item["loc"])
    return f"{where}: {path}: {item['msg']}"
