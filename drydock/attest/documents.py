"""Everything that is said of one built platform, as documents ready to be attached to its digest. IO."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from drydock.attest import bom, components, contents, licences, provenance
from drydock.build.job import Job
from drydock.core.errors import UntrustedError
from drydock.core.files import compact, dumps
from drydock.lock import lockfile, proof
from drydock.model.record import dump
from drydock.oci import layout as oci
from drydock.registry.manifests import Manifest

LOCK = "application/vnd.drydock.lock.v1+json"
RELEASE = "application/vnd.drydock.release.v1+json"
PROOF = "application/vnd.drydock.proof.v1+json"
LICENCES = "application/vnd.drydock.licences.v1+json"
PROVENANCE = "application/vnd.in-toto+json"
CYCLONEDX = "application/vnd.cyclonedx+json"
SPDX = "application/spdx+json"
CARRIED = "attached"
"""Folder of a layout's documents, beside its blobs."""
KINDS = {
    LOCK: "lock.json",
    RELEASE: "release.json",
    PROOF: "proof.json",
    LICENCES: "licences.json",
    PROVENANCE: "provenance.json",
    CYCLONEDX: "sbom.cdx.json",
    SPDX: "sbom.spdx.json",
}
"""Artifact type → file name."""


class Attached(NamedTuple):
    """A document about an image."""

    media_type: str
    data: bytes

    @property
    def name(self) -> str:
        """Return its file name."""
        return KINDS[self.media_type]


def documents(job: Job, layout: Path, manifest: Manifest, subject: str) -> tuple[Attached, ...]:
    """Return what is said of a built platform; of one that a bundle brought, what was said where it was built.

    Raises LicenceError, and UntrustedError where image and lock disagree or a document breaks its own format's rules.
    """
    pins = job.pins
    found = contents.read_contents(manifest.content, partial(oci.blob, layout))
    _agree(job, components.disagreements(job.variant, pins, found))
    policy = licences.read_policy(job.root)
    inventory = licences.inventory(manifest.digest, found, policy)
    licences.settle(inventory, policy)
    brought = carried(layout)
    if brought:
        return brought
    parts = (
        *components.installed(found, components.locked(job.variant, pins), inventory),
        *components.ingredients(pins),
    )
    return (
        Attached(LOCK, lockfile.path_of(job.root, job.variant.id).read_bytes()),
        Attached(LICENCES, compact(dump(inventory)).encode()),
        Attached(PROVENANCE, compact(provenance.statement(job, layout, manifest.digest, subject, os.environ)).encode()),
        *_bills(job, manifest, parts),
        *_proof(job),
    )


def carried(layout: Path) -> tuple[Attached, ...]:
    """Return the documents that a bundle brought with a layout, in the order in which they are attached."""
    folder = layout / CARRIED
    found = {kind: folder / name for kind, name in KINDS.items() if (folder / name).is_file()}
    return tuple(Attached(kind, path.read_bytes()) for kind, path in found.items())


def release(digest: str, repository: str, tag: str) -> Attached:
    """Return the document that binds a release's tag to its digest: with its signature, the tag cannot be swapped."""
    return Attached(RELEASE, dumps({"schema": 1, "image": digest, "repository": repository, "tag": tag}).encode())


def _bills(job: Job, manifest: Manifest, parts: tuple[components.Component, ...]) -> tuple[Attached, ...]:
    subject = bom.BomSubject(f"drydock/{job.variant.id}", job.variant.vllm.version, manifest.digest, job.variant.epoch)
    cyclonedx, spdx = bom.cyclonedx(subject, parts), bom.spdx(subject, parts)
    problems = (*bom.cyclonedx_problems(cyclonedx), *bom.spdx_problems(spdx))
    if problems:
        raise UntrustedError(*(f"{job.variant.id}: bill of materials: {problem}" for problem in problems))
    return Attached(CYCLONEDX, cyclonedx.encode()), Attached(SPDX, spdx.encode())


def _proof(job: Job) -> tuple[Attached, ...]:
    """Return what tests have shown, if they did of these very inputs."""
    shown = proof.read_proof(job.root, job.variant.id)
    if shown is None or shown.inputs_sha256 != job.inputs_sha256:
        return ()
    return (Attached(PROOF, dumps(dump(shown)).encode()),)


def _agree(job: Job, problems: tuple[str, ...]) -> None:
    if problems:
        raise UntrustedError(
            *(f"{job.variant.id} ({job.platform}): {problem}" for problem in problems),
            hint="what is in the image is not what its lock says: build again with --no-cache",
        )
