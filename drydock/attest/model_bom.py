"""Bill of materials of a model: a CycloneDX 1.6 document that names each file. Pure.

What no one says of a model, its licence or its origin, is "unknown" there. Source:
https://cyclonedx.org/docs/1.6/json/.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from packageurl import PackageURL

from drydock.attest.bom import NAMESPACE
from drydock.attest.licences import SPDX, is_spdx
from drydock.core.files import format_compact_json
from drydock.inputs.models import ModelFolder

UNKNOWN = "unknown"
CARD_AT_MOST = 1 << 20
"""Bytes of a model card."""
_HEAD = re.compile(r"\A---\r?\n(.*?)\r?\n---\s", re.DOTALL)
"""The card's metadata (https://huggingface.co/docs/hub/model-cards#model-card-metadata)."""
_VALUE = r"""^{}:[ \t]*["']?([A-Za-z0-9][\w.+-]{{0,99}})["']?[ \t]*\r?$"""


def licence_of(card: str) -> str:
    """Return the licence that a model card (README.md) names: SPDX's name of it if it has one; or UNKNOWN."""
    head = _HEAD.match(card)
    keys = ("license", "license_name")
    matches = [re.search(_VALUE.format(key), head[1], re.MULTILINE | re.ASCII) if head else None for key in keys]
    licence, name = (match[1] if match else "" for match in matches)
    if licence == "other":
        return name or UNKNOWN
    return str(SPDX.parse(licence)) if licence and is_spdx(licence) else licence or UNKNOWN


def origin_of(folder: ModelFolder) -> str:
    """Return where a model was pulled from; or UNKNOWN."""
    return f"{folder.name} of {folder.hub} at {folder.revision}" if folder.hub else UNKNOWN


def make_model_bom(name: str, digest: str, folder: ModelFolder, licence: str) -> bytes:
    """Return the document about a model that is the image with this digest; the same bytes for the same model."""
    model: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": digest,
        "name": folder.name or name,
        "hashes": [_make_hash_entry(digest.removeprefix("sha256:"))],
        "properties": [_make_property("licence", licence), _make_property("origin", origin_of(folder))],
    }
    if licence != UNKNOWN:
        model["licenses"] = [{"license": {"id" if is_spdx(licence) else "name": licence}}]
    if folder.revision:
        model["version"] = folder.revision
    if folder.hub == "Hugging Face":
        owner, _, model_name = folder.name.rpartition("/")
        model["purl"] = str(PackageURL("huggingface", owner or None, model_name, folder.revision))
    files = [
        {
            "type": "file",
            "name": path,
            "hashes": [_make_hash_entry(file.sha256)],
            "properties": [_make_property("size", file.size)],
        }
        for path, file in sorted(folder.files.items())
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, f'cyclonedx {digest}')}",
        "version": 1,
        "metadata": {"component": model},
        "components": files,
    }
    return format_compact_json(document).encode()


def _make_hash_entry(digits: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digits}


def _make_property(name: str, value: object) -> dict[str, str]:
    return {"name": f"io.drydock:{name}", "value": str(value)}
