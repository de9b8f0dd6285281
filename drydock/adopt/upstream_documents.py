"""What the publisher of a base attached to it, signatures, attestations, bills of materials, is carried along. IO.

They are about the base's digests, which the adopted image names in its label and which are put into its repository too.
drydock names them, and vouches for none of them. Sources: distribution-spec 1.1, "Listing Referrers"; cosign's
specs/SIGNATURE_SPEC.md for tags; BuildKit's docs/attestations/attestation-storage.md for entries of an index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from drydock.adopt.base_image import BaseImage
from drydock.attest import cosign
from drydock.attest.cosign import Trust
from drydock.core.console import log
from drydock.core.errors import DrydockError, RegistryError, UntrustedError
from drydock.model.record import Digest, Record
from drydock.oci.manifest import Manifest
from drydock.oci.reference import DIGEST
from drydock.publish.repository import Repository
from drydock.registry.blobs import LARGEST_DOCUMENT, RemoteContent
from drydock.registry.manifests import fallback_tag

COSIGN_TAGS = {".sig": "signature", ".att": "attestation", ".sbom": "bill of materials"}
"""End of a tag that cosign writes → what it names."""
ATTESTATION = "vnd.docker.reference.type"
"""Annotation of an index's entry that is no image, but BuildKit's attestation of one."""
MOST_DOCUMENTS = 100
"""Documents that are carried along. Official images have fewer than ten."""


class UpstreamDocument(Record):
    """A document that the base's publisher, or another, attached to it."""

    kind: str
    """Artifact type, or what cosign's tag or BuildKit's annotation says."""
    digest: Digest
    """Of the document's manifest."""
    subject: Digest
    """What it is about: the base's index, or its image for a platform."""


def check_signature(base: BaseImage, trust: Trust) -> bool:
    """Tell whether a signature of the base was checked: one is required if the user names a signer.

    Raises UntrustedError unless the accepted signer signed the base, in either form that cosign writes.
    """
    if not trust.required:
        return False
    where = base.repository.where.at(base.digest)
    try:
        cosign.check_digest_signature(where, trust)
    except UntrustedError:
        if not trust.key:
            raise
        cosign.check_digest_signature(where, trust._replace(as_tag=True))
    return True


def carry_documents(base: BaseImage, repository: Repository) -> tuple[UpstreamDocument, ...]:
    """Copy what is attached to a base into another repository, and the base's own manifests. Its layers are there.

    A document that cannot be copied, or is not about the base, is left out and named: the image is whole without it.
    """
    source, is_elsewhere = base.repository, base.repository.where != repository.where
    if is_elsewhere:
        for platform in base.platforms.values():
            with _left_out(f"the image {platform.manifest.digest}"):
                _copy_manifest(platform.manifest, source, repository)
    carried: list[UpstreamDocument] = []
    for number, listed in enumerate(_list_documents(base)):
        if number == MOST_DOCUMENTS:
            log(f"not carried along: more than {MOST_DOCUMENTS} documents of {base.where}")
            break
        with _left_out(f"{listed.kind or 'document'} {listed.name}"):
            manifest = _read_document(listed, source)
            if manifest and is_elsewhere:
                _copy_manifest(manifest, source, repository, listed)
            if manifest:
                kind = listed.kind or str(
                    manifest.content.get("artifactType") or manifest.content["config"]["mediaType"]
                )
                carried.append(UpstreamDocument(kind=kind, digest=manifest.digest, subject=listed.subject.digest))
    for index in base.indexes if is_elsewhere else ():
        with _left_out(f"the index {index.digest}"):
            _copy_index(index, repository)
    return tuple(carried)


@contextlib.contextmanager
def _left_out(what: str) -> Iterator[None]:
    try:
        yield
    except DrydockError as error:
        log(f"not carried along: {ascii(what)[1:-1]}: {error.problems[0]}")


class _Listed(NamedTuple):
    """A document as the base's repository lists it. Only its own manifest says what it is about."""

    subject: Manifest
    """The manifest of the base that it is listed under."""
    name: str
    """Digest or tag to ask for."""
    kind: str = ""
    """What cosign's tag or BuildKit's annotation says; empty for a referrer, which names its type and its subject."""

    @property
    def tag(self) -> str:
        """Return its tag; empty if it is listed by its digest."""
        return "" if DIGEST.fullmatch(self.name) else self.name


def _list_documents(base: BaseImage) -> Iterator[_Listed]:
    manifests = (*base.indexes[:1], *(platform.manifest for platform in base.platforms.values()))
    subjects = {manifest.digest: manifest for manifest in manifests}
    for digest, subject in subjects.items():
        for item in base.repository.manifests.referrers(digest):
            yield _Listed(subject, str(item["digest"]))
        for end, kind in COSIGN_TAGS.items():
            yield _Listed(subject, f"{fallback_tag(digest)}{end}", kind)
    for index in base.indexes:
        for entry in index.content["manifests"]:
            attested = subjects.get(_read_attested(entry))
            if attested and DIGEST.fullmatch(entry["digest"]):
                yield _Listed(attested, entry["digest"], "BuildKit's attestation")


def _read_attested(entry: Mapping[str, Any]) -> str:
    """Return the image that an entry of an index is BuildKit's attestation of; empty if it is none."""
    annotations = entry.get("annotations")
    if not isinstance(annotations, dict) or annotations.get(ATTESTATION) != "attestation-manifest":
        return ""
    return str(annotations.get("vnd.docker.reference.digest", ""))


def _read_document(listed: _Listed, source: Repository) -> Manifest | None:
    """Return a document's manifest; None if nothing has cosign's tag.

    Raises RegistryError for one that is lost, or about anything but the base: a registry lists a manifest with another
    subject under that one, which may be an image of the user.
    """
    manifest = source.manifests.find(listed.name)
    if manifest is None and listed.tag:
        return None
    if manifest is None:
        raise RegistryError("the registry does not have it")
    if manifest.is_index:
        raise RegistryError("an index, expected a document")
    if not manifest.is_about(listed.subject) and not (listed.kind and "subject" not in manifest.content):
        raise RegistryError(f"its subject is not {listed.subject.digest}, which it is listed under")
    return manifest


def _copy_manifest(
    manifest: Manifest, source: Repository, repository: Repository, listed: _Listed | None = None
) -> None:
    """Copy a manifest and those of its blobs that the other repository lacks. Raises RegistryError for large ones."""
    content, tag = manifest.content, listed.tag if listed else ""
    if not listed:
        _refuse_subject(manifest)
    if tag and repository.manifests.digest(tag) not in (None, manifest.digest):
        raise RegistryError(f"{repository.where.tagged(tag)} names another document, which stays")
    for blob in (content["config"], *content["layers"]):
        digest, size = blob["digest"], blob["size"]
        if repository.blobs.has(digest):
            continue
        if size > LARGEST_DOCUMENT:
            raise RegistryError(f"{digest}: {size} bytes, expected at most {LARGEST_DOCUMENT}")
        repository.push_blob(RemoteContent(source.blobs, digest, size), digest)
    repository.manifests.push(manifest, tag)
    if "subject" in content:
        repository.manifests.refer(manifest)


def _copy_index(index: Manifest, repository: Repository) -> None:
    _refuse_subject(index)
    if not all(repository.manifests.find(entry["digest"]) for entry in index.content["manifests"]):
        raise RegistryError("it lists images for other platforms")
    repository.manifests.push(index)


def _refuse_subject(manifest: Manifest) -> None:
    """Raise RegistryError for an image that is attached to another one."""
    if "subject" in manifest.content:
        raise RegistryError("an image with a subject, which would be attached to another image")
