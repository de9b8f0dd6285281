"""What this project states about known vulnerabilities: vex.yaml, and the OpenVEX document of an image. Reads vex.yaml.

OpenVEX 0.2.0: https://github.com/openvex/spec/blob/main/OPENVEX-SPEC.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packageurl import PackageURL

from drydock.attest.components import locked
from drydock.config.strict_yaml import read_yaml
from drydock.config.validation import validate
from drydock.core.files import checksum
from drydock.core.paths import ROOT
from drydock.model.locked import LockedPlatform, source_of, source_version
from drydock.model.variant import Variant
from drydock.model.vex import VexFile, VexStatement

FILE = "drydock/attest/vex.yaml"
CONTEXT = "https://openvex.dev/ns/v0.2.0"
NOTHING = VexFile(schema_=1, author="drydock", statements=())


def read_statements(root: Path = ROOT) -> VexFile:
    """Return a repository's statements; none if it has no file. Raises InputError."""
    path = root / FILE
    return validate(VexFile, read_yaml(path, FILE)) if path.is_file() else NOTHING


def applies(statement: VexStatement, variant: str, purl: str, version: str) -> bool:
    """Return whether a statement is about a version of a package, in a variant. Pure."""
    in_product = not statement.products or variant in statement.products
    return in_product and statement.package == purl and version in statement.versions


def because(statement: VexStatement) -> str:
    """Return a statement as one line. Pure."""
    justification = f" ({statement.justification})" if statement.justification else ""
    return f"{FILE}: {statement.status}{justification}: {statement.statement}"


Pinned = tuple[str, str, str]
"""Package URL as statements name it, version, and the package URL in the bill of materials."""


def pinned(variant: Variant, pins: LockedPlatform) -> set[Pinned]:
    """Return what an image's lock pins. A statement about a Debian source package is about each of its packages."""
    sources = {(deb.name, deb.version): source_of(deb) for deb in getattr(pins.base, "packages", ())}
    found = set()
    for part in locked(variant, pins):
        deb = part.kind == "deb"
        name = f"pkg:deb/debian/{sources[part.name, part.version]}" if deb else f"pkg:pypi/{part.name}"
        found.add((name, source_version(part.version) if deb else part.version, part.purl))
    return found


def document(file: VexFile, variant: str, product: str, pinned: Iterable[Pinned]) -> dict[str, Any] | None:
    """Return the OpenVEX document of an image; None if no statement is about it. Pure, and the same for equal input."""
    packages = sorted(pinned)
    entries = []
    for statement in file.statements:
        parts = {part for purl, version, part in packages if applies(statement, variant, purl, version)}
        if parts:
            entries.append(_entry(statement, product, sorted(parts)))
    if not entries:
        return None
    written = {
        "@context": CONTEXT,
        "author": file.author,
        "timestamp": max(entry["timestamp"] for entry in entries),
        "version": 1,
        "statements": entries,
    }
    return {"@id": f"urn:drydock:vex:{checksum(written)}", **written}


def product_of(repository: str, digest: str) -> str:
    """Return the package URL of an image in a repository. Pure."""
    name = repository.rpartition("/")[2].lower()
    return str(PackageURL("oci", name=name, version=digest, qualifiers={"repository_url": repository.lower()}))


def _entry(statement: VexStatement, product: str, parts: list[str]) -> dict[str, Any]:
    """Return one statement in OpenVEX's words: its text is an action if affected, else the impact."""
    texts = {"affected": "action_statement", "not_affected": "impact_statement"}
    justified = {"justification": statement.justification} if statement.justification else {}
    return {
        "vulnerability": {"name": statement.vulnerability},
        "timestamp": f"{statement.date}T00:00:00Z",
        "products": [{"@id": product, "subcomponents": [{"@id": part} for part in parts]}],
        "status": statement.status,
        **justified,
        texts.get(statement.status, "status_notes"): statement.statement,
    }
