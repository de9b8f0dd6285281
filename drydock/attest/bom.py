"""Bill of materials: an SPDX 2.3 document as JSON, the same bytes for the same image. Pure.

The document is made and validated with SPDX's own library, spdx-tools.
Source: https://spdx.github.io/spdx-spec/v2.3/.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Literal, NamedTuple

from spdx_tools.common.spdx_licensing import spdx_licensing
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    Checksum,
    ChecksumAlgorithm,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    ExtractedLicensingInfo,
    Package,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
from spdx_tools.spdx.writer.json.json_writer import write_document_to_stream

from drydock.attest.components import Component
from drydock.attest.licences import SPDX
from drydock.core.files import format_compact_json

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "drydock.sbom")
"""Namespace of the document identifiers, which are derived from the image's digest."""
IMAGE_ID = "SPDXRef-image"
"""SPDX identifier of the package that stands for the image itself."""


class BomSubject(NamedTuple):
    """The image, or the wheel, that a bill of materials describes."""

    name: str
    version: str
    digest: str
    epoch: int
    """SOURCE_DATE_EPOCH, in seconds: the document's creation time, so that the document is reproducible."""
    kind: Literal["image", "wheel"] = "image"
    """An image contains its parts. A wheel depends on them."""

    @property
    def component(self) -> Component:
        """Return it as a component; its digest identifies an image, and its version a wheel."""
        if self.kind == "image":
            return Component("oci", self.name, self.digest)
        return Component("pypi", self.name, self.version, sha256=self.digest, licence="Apache-2.0")


def make_bom(subject: BomSubject, components: Sequence[Component]) -> str:
    """Return the bill of materials of an image or a wheel, as JSON."""
    stream = StringIO()
    write_document_to_stream(_make_spdx_document(subject, components), stream, validate=False)  # problems() validates
    return format_compact_json(json.loads(stream.getvalue()))


def find_spdx_violations(text: str) -> tuple[str, ...]:
    """Return the violations of the SPDX specification that spdx-tools finds in a document."""
    document = JsonLikeDictParser().parse(json.loads(text))
    return tuple(message.validation_message for message in validate_full_spdx_document(document))


def list_bom_packages(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return package URL and sha256 of each package in a document; the hash is empty if there is none."""
    packages = set()
    for item in document["packages"]:
        if item["SPDXID"] != IMAGE_ID:
            checksums = item.get("checksums")
            sha256 = checksums[0]["checksumValue"] if checksums else ""
            packages.add((item["externalRefs"][0]["referenceLocator"], sha256))
    return packages


def _make_spdx_document(subject: BomSubject, components: Sequence[Component]) -> Document:
    whole = _make_spdx_package(f"SPDXRef-{subject.kind}", subject.component, subject.version)
    relation = RelationshipType.CONTAINS if subject.kind == "image" else RelationshipType.DEPENDS_ON
    parts = [_make_spdx_package(_make_spdx_id(number, part), part) for number, part in enumerate(components)]
    relationships = [Relationship("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, whole.spdx_id)]
    relationships += [Relationship(whole.spdx_id, relation, part.spdx_id) for part in parts]
    info = CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=subject.name,
        data_license="CC0-1.0",
        document_namespace=f"urn:uuid:{uuid.uuid5(NAMESPACE, f'spdx {subject.digest}')}",
        creators=[Actor(ActorType.TOOL, "drydock")],
        created=dt.datetime.fromtimestamp(subject.epoch, dt.UTC).replace(tzinfo=None),
    )
    licences = _unlisted_licences(components)
    return Document(info, [whole, *parts], relationships=relationships, extracted_licensing_info=licences)


def _make_spdx_package(spdx_id: str, part: Component, version: str = "") -> Package:
    purl = ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", part.purl)
    return Package(
        spdx_id=spdx_id,
        name=part.name,
        version=version or part.version or None,
        download_location=f"git+{part.source}@{part.version}" if part.kind == "git" else SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, part.sha256)] if part.sha256 else [],
        license_declared=spdx_licensing.parse(part.licence) if part.licence else SpdxNoAssertion(),
        license_concluded=SpdxNoAssertion(),
        copyright_text=SpdxNoAssertion(),
        comment=f"part of the wheel of {part.within}" if part.within else part.remark or None,
        external_references=[purl],
    )


def _make_spdx_id(number: int, part: Component) -> str:
    """Return an SPDX identifier: letters, digits, '.' and '-'."""
    short = hashlib.sha256(repr(part).encode()).hexdigest()[:8]
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{part.kind}-{part.name}-{number}-{short}")


def _unlisted_licences(components: Sequence[Component]) -> list[ExtractedLicensingInfo]:
    """Return an entry for each licence that is not on SPDX's list."""
    keys = {key for part in components if part.licence for key in SPDX.license_keys(part.licence)}
    names = sorted(key for key in keys if key.startswith("LicenseRef-"))
    return [
        ExtractedLicensingInfo(name, extracted_text=f"{name}: see the package's own files", license_name=name)
        for name in names
    ]
