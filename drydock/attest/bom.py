"""Bills of materials: CycloneDX 1.6 and SPDX 2.3 as JSON, the same bytes for the same image. Pure.

Made and checked with the formats' own libraries: cyclonedx-python-lib (with CycloneDX's JSON schema) and spdx-tools.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, NamedTuple

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as CycloneComponent
from cyclonedx.model.component import ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
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
from drydock.attest.licences import SPDX, is_spdx
from drydock.core.files import compact

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "drydock.sbom")
"""Of the identifiers that are made of an image's digest."""


class BomSubject(NamedTuple):
    """What a bill of materials is of."""

    name: str
    """Title of the image."""
    version: str
    digest: str
    epoch: int
    """SOURCE_DATE_EPOCH: when the document claims to be made, so that it is the same each time."""

    @property
    def moment(self) -> dt.datetime:
        """Return the epoch as a date."""
        return dt.datetime.fromtimestamp(self.epoch, dt.UTC)


# --- CycloneDX ------------------------------------------------------------------------------------------------------


def cyclonedx(subject: BomSubject, components: Sequence[Component]) -> str:
    """Return a CycloneDX document."""
    root = CycloneComponent(
        type=ComponentType.CONTAINER,
        name=subject.name,
        version=subject.version,
        bom_ref=subject.digest,
        hashes=[_hash(subject.digest.removeprefix("sha256:"))],
    )
    parts = {_reference(number, part): part for number, part in enumerate(components)}
    bom = Bom(
        serial_number=uuid.uuid5(NAMESPACE, subject.digest),
        components=[_cyclone_component(reference, part) for reference, part in parts.items()],
    )
    bom.metadata.timestamp = subject.moment
    bom.metadata.component = root
    bom.register_dependency(root, list(bom.components))
    return compact(json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()))


def cyclonedx_problems(text: str) -> tuple[str, ...]:
    """Return what CycloneDX's own JSON schema has against a document."""
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    return (str(error),) if error else ()


def _cyclone_component(reference: str, part: Component) -> CycloneComponent:
    return CycloneComponent(
        type=ComponentType.FILE if part.kind == "file" else ComponentType.LIBRARY,
        name=part.name,
        version=part.version or None,
        bom_ref=reference,
        purl=PackageURL.from_string(part.purl),
        hashes=[_hash(part.sha256)] if part.sha256 else (),
        licenses=[_cyclone_licence(part.licence)] if part.licence else (),
        description=f"part of the wheel of {part.within}" if part.within else None,
    )


def _cyclone_licence(licence: str) -> DisjunctiveLicense | LicenseExpression:
    return LicenseExpression(licence) if is_spdx(licence) else DisjunctiveLicense(name=licence)


def _hash(sha256: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=sha256)


# --- SPDX -----------------------------------------------------------------------------------------------------------


def spdx(subject: BomSubject, components: Sequence[Component]) -> str:
    """Return an SPDX document."""
    document = _document(subject, components)
    stream = StringIO()
    write_document_to_stream(document, stream, validate=False)  # what is wrong is for spdx_problems to say
    return compact(json.loads(stream.getvalue()))


def spdx_problems(text: str) -> tuple[str, ...]:
    """Return what the SPDX tools have against a document."""
    document = JsonLikeDictParser().parse(json.loads(text))
    return tuple(message.validation_message for message in validate_full_spdx_document(document))


def _document(subject: BomSubject, components: Sequence[Component]) -> Document:
    root = _spdx_package("SPDXRef-image", Component("oci", subject.name, subject.digest), subject.version)
    parts = [_spdx_package(f"SPDXRef-{_reference(number, part)}", part) for number, part in enumerate(components)]
    relationships = [Relationship("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, root.spdx_id)]
    relationships += [Relationship(root.spdx_id, RelationshipType.CONTAINS, part.spdx_id) for part in parts]
    info = CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=subject.name,
        data_license="CC0-1.0",
        document_namespace=f"urn:uuid:{uuid.uuid5(NAMESPACE, f'spdx {subject.digest}')}",
        creators=[Actor(ActorType.TOOL, "drydock")],
        created=subject.moment.replace(tzinfo=None),
    )
    return Document(info, [root, *parts], relationships=relationships, extracted_licensing_info=_extracted(components))


def _spdx_package(spdx_id: str, part: Component, version: str = "") -> Package:
    purl = ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", part.purl)
    declared = spdx_licensing.parse(part.licence) if part.licence else SpdxNoAssertion()
    return Package(
        spdx_id=spdx_id,
        name=part.name,
        version=version or part.version or None,
        download_location=f"git+{part.source}@{part.version}" if part.kind == "git" else SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, part.sha256)] if part.sha256 else [],
        license_declared=declared,
        license_concluded=SpdxNoAssertion(),
        copyright_text=SpdxNoAssertion(),
        comment=f"part of the wheel of {part.within}" if part.within else None,
        external_references=[purl],
    )


def _extracted(components: Sequence[Component]) -> list[ExtractedLicensingInfo]:
    """Return an entry for each licence that SPDX does not list."""
    keys = {key for part in components if part.licence for key in SPDX.license_keys(part.licence)}
    names = sorted(key for key in keys if key.startswith("LicenseRef-"))
    return [
        ExtractedLicensingInfo(name, extracted_text=f"{name}: see the package's own files", license_name=name)
        for name in names
    ]


# --- both -----------------------------------------------------------------------------------------------------------


def _reference(number: int, part: Component) -> str:
    """Return an identifier within a document, of the characters that SPDX takes."""
    short = hashlib.sha256(repr(part).encode()).hexdigest()[:8]
    return re.sub(r"[^A-Za-z0-9.-]", "-", f"{part.kind}-{part.name}-{number}-{short}")


def cyclonedx_packages(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return a document's packages: package URL and hash."""
    return {(item["purl"], _first(item.get("hashes"), "content")) for item in document["components"]}


def spdx_packages(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return a document's packages: package URL and hash."""
    packages = (item for item in document["packages"] if item["SPDXID"] != "SPDXRef-image")
    return {
        (item["externalRefs"][0]["referenceLocator"], _first(item.get("checksums"), "checksumValue"))
        for item in packages
    }


def _first(items: Sequence[Mapping[str, str]] | None, key: str) -> str:
    return items[0][key] if items else ""
