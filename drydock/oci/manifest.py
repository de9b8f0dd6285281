"""A manifest of an image, an index or an artifact, as bytes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from drydock.core.files import format_compact_json, parse_any_json
from drydock.oci import strict


class Manifest(NamedTuple):
    """A manifest as bytes, since the digest is that of the bytes."""

    data: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """Return the sha256 of its bytes."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"

    @property
    def content(self) -> dict[str, Any]:
        """Return the parsed content."""
        value: dict[str, Any] = parse_any_json(self.data)
        return value

    @property
    def is_index(self) -> bool:
        """Tell whether it is an index, not an image."""
        return self.media_type in strict.INDEXES

    def descriptor(self) -> dict[str, Any]:
        """Return the descriptor with which another manifest refers to it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.data)}

    def is_about(self, subject: Manifest) -> bool:
        """Tell whether its `subject` is this manifest, by media type, digest and size."""
        stated = self.content.get("subject") or {}
        return {name: stated.get(name) for name in subject.descriptor()} == subject.descriptor()


def to_manifest(content: Mapping[str, Any]) -> Manifest:
    """Return the manifest with this content, in canonical form."""
    return Manifest(format_compact_json(content).encode(), str(content["mediaType"]))
