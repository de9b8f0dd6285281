"""What the bills of materials of an image in a registry list, to look it up as what a lock pins. IO.

The bill names Debian packages as they are installed. Advisories are about source packages of a release, which the lock
that is attached too names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from packageurl import PackageURL
from packaging.utils import canonicalize_name

from drydock.attest import documents
from drydock.attest.bom import IMAGE_ID
from drydock.core.console import log
from drydock.core.errors import UntrustedError
from drydock.examine.advisories import osv
from drydock.examine.advisories.advisory_record import PYPI, NotChecked, PinnedPackage, clean_outside_text
from drydock.examine.advisories.advisory_search import RELEASES, PinnedPackages
from drydock.examine.remote_image import Image
from drydock.examine.signatures import HINT, Signatures
from drydock.lock import lockfile
from drydock.model.locked import LockedDebianBase, source_of, source_version
from drydock.publish.repository import Referrer

BASE = "the bill names its digest, not its packages"
SOURCES = "databases list released versions, not commits or files"
NO_RELEASE = "no attached lock names its source package and its release of Debian"


class PackageReference(osv.Outside):
    """A name of a package in another system."""

    referenceType: str = ""  # noqa: N815 - SPDX's names
    referenceLocator: str = ""  # noqa: N815


class ListedPackage(osv.Outside):
    """A package of an SPDX document."""

    SPDXID: str
    name: str
    externalRefs: tuple[PackageReference, ...] = ()  # noqa: N815


class BillOfMaterials(osv.Outside):
    """What is read of an SPDX document, of drydock or of anyone else."""

    packages: tuple[ListedPackage, ...] = ()


class DebianSource(NamedTuple):
    """The source package of an installed Debian package."""

    release: str
    """As OSV names it: Debian:12."""
    name: str


def read_listed(image: Image, platforms: Sequence[str], signatures: Signatures) -> PinnedPackages:
    """Return what the bills of these platforms list, as far as the accepted signer has signed them.

    Raises UntrustedError if a platform has no such bill, RegistryError, and InputError for one that is not SPDX.
    """
    packages: dict[PinnedPackage, dict[str, None]] = {}
    rest: dict[tuple[str, str], dict[str, None]] = {}
    for platform in platforms:
        bills = _read_signed(image, platform, documents.BOM, signatures)
        if not bills:
            text = (
                f"{platform}: no {documents.FILE_NAMES[documents.BOM]} is attached that the accepted signer has signed"
            )
            raise UntrustedError(text, hint=HINT)
        locks = _read_signed(image, platform, documents.LOCK, signatures)
        sources = {name: source for item in locks for name, source in _debian_sources(item, platform)}
        for purl in {purl for item in bills for purl in _package_urls(item)}:
            package = _identify_package(purl, sources)
            if isinstance(package, PinnedPackage):
                packages.setdefault(package, {})[platform] = None
            else:
                rest.setdefault((clean_outside_text(purl), package), {})[platform] = None
    return PinnedPackages(
        {package: tuple(names) for package, names in sorted(packages.items())},
        tuple(NotChecked(what=what, why=why, variants=tuple(names)) for (what, why), names in sorted(rest.items())),
    )


def _read_signed(image: Image, platform: str, kind: str, signatures: Signatures) -> list[Referrer]:
    """Return the signed documents of a type; says how many others there are."""
    digest = image.platforms[platform].digest
    artifacts = [artifact for _, artifact in image.repository.attached(digest, (kind,))]
    signed = signatures.signed_of(image.where, artifacts)
    if len(signed) < len(artifacts):
        log(f"{platform}: left out: {len(artifacts) - len(signed)} {kind} that the accepted signer has not signed")
    return [image.repository.document(digest, kind, artifact) for artifact in signed]


def _package_urls(item: Referrer) -> Iterator[str]:
    for package in osv.parse_osv(BillOfMaterials, item.data, f"the bill attached as {item.manifest}").packages:
        urls = [ref.referenceLocator for ref in package.externalRefs if ref.referenceType == "purl"]
        if package.SPDXID != IMAGE_ID:
            yield from urls or [package.name]


def _debian_sources(item: Referrer, platform: str) -> Iterator[tuple[str, DebianSource]]:
    """Yield the source of each Debian package that an attached lock pins for a platform."""
    text = item.data.decode(errors="replace")
    pins = lockfile.parse_lock(text, f"the lock attached as {item.manifest}").platforms.get(platform)
    if pins and isinstance(pins.base, LockedDebianBase) and pins.base.suite in RELEASES:
        for deb in pins.base.packages:
            yield deb.name, DebianSource(f"Debian:{RELEASES[pins.base.suite]}", source_of(deb))


def _identify_package(text: str, sources: Mapping[str, DebianSource]) -> PinnedPackage | str:
    """Return the package that a package URL names, or why it cannot be looked up."""
    try:
        url = PackageURL.from_string(text)
    except ValueError:
        return "the bill gives no package URL for it"
    if url.type == "pypi" and url.version:
        return PinnedPackage(PYPI, canonicalize_name(url.name), url.version)
    if url.type == "deb" and url.version:
        source = sources.get(url.name)
        return PinnedPackage(source.release, source.name, source_version(url.version)) if source else NO_RELEASE
    return BASE if url.type == "oci" else SOURCES
