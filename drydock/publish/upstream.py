"""What the publisher of a base attached to it, signatures, attestations, bills of materials, is carried along. IO.

They are about the base's digests, which the adopted image names in its label and which are put into its repository too.
drydock names them, and vouches for none of them. Sources: distribution-spec 1.1, "Listing Referrers"; cosign's
specs/SIGNATURE_SPEC.md for tags; BuildKit's docs/attestations/attestation-storage.md for entries of an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drydock.attest import cosign
from drydock.attest.cosign import Trust
from drydock.core.console import log
from drydock.core.errors import DrydockError, RegistryError, UntrustedError
from drydock.model.record import Digest, Record
from drydock.oci.manifest import Manifest
from drydock.publish.base_image import BaseImage
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

    A document that cannot be copied is left out, and is said: the image is whole without it.
    """
    if base.repository.where == repository.where:
        return tuple(document for document, _, _ in _list_documents(base))
    for platform in base.platforms.values():
        _copy_manifest(platform.manifest, base.repository, repository)
    carried = []
    for document, manifest, tag in _list_documents(base):
        try:
            _copy_document(manifest, tag, base.repository, repository)
        except DrydockError as error:
            log(f"not carried along: {document.kind} {document.digest}: {error.problems[0]}")
        else:
            carried.append(document)
    for index in base.indexes:
        if all(repository.manifests.find(entry["digest"]) for entry in index.content["manifests"]):
            repository.manifests.push(index)
        else:
            log(f"not carried along: the index {index.digest}, which lists images for other platforms")
    return tuple(carried)


def _list_documents(base: BaseImage) -> Iterator[tuple[UpstreamDocument, Manifest, str]]:
    """Yield each document with its manifest, and its tag if it has one. Those that the registry lost are left out."""
    manifests = base.repository.manifests
    left = MOST_DOCUMENTS
    for subject, kind, name, tag in _list_names(base):
        manifest = manifests.find(name)
        if manifest is None:
            continue
        if not left:
            log(f"not carried along: more than {MOST_DOCUMENTS} documents of {base.where}")
            return
        left -= 1
        yield UpstreamDocument(kind=kind, digest=manifest.digest, subject=subject), manifest, tag


def _list_names(base: BaseImage) -> Iterator[tuple[str, str, str, str]]:
    """Yield of each document its subject, its kind, the name to ask for, and its tag if it has one."""
    digests = dict.fromkeys([base.digest, *(platform.manifest.digest for platform in base.platforms.values())])
    for digest in digests:
        for item in base.repository.manifests.referrers(digest):
            yield digest, base.repository.artifact_type(item), str(item["digest"]), ""
        for end, kind in COSIGN_TAGS.items():
            tag = f"{fallback_tag(digest)}{end}"
            yield digest, kind, tag, tag
    for index in base.indexes:
        for entry in index.content["manifests"]:
            subject = _read_attested(entry)
            if subject in digests:
                yield subject, "BuildKit's attestation", entry["digest"], ""


def _read_attested(entry: Mapping[str, Any]) -> str:
    """Return the image that an entry of an index is BuildKit's attestation of; empty if it is none."""
    annotations = entry.get("annotations")
    if not isinstance(annotations, dict) or annotations.get(ATTESTATION) != "attestation-manifest":
        return ""
    return str(annotations.get("vnd.docker.reference.digest", ""))


def _copy_document(manifest: Manifest, tag: str, source: Repository, repository: Repository) -> None:
    _copy_manifest(manifest, source, repository, tag)
    if "subject" in manifest.content:
        repository.manifests.refer(manifest)


def _copy_manifest(manifest: Manifest, source: Repository, repository: Repository, tag: str = "") -> None:
    """Copy a manifest and those of its blobs that the other repository lacks. Raises RegistryError for large ones."""
    content = manifest.content
    for blob in () if manifest.is_index else (content["config"], *content["layers"]):
        digest, size = blob["digest"], blob["size"]
        if repository.blobs.has(digest):
            continue
        if size > LARGEST_DOCUMENT:
            raise RegistryError(f"{digest}: {size} bytes, expected at most {LARGEST_DOCUMENT}")
        repository.push_blob(RemoteContent(source.blobs, digest, size), digest)
    repository.manifests.push(manifest, tag)
