"""The documents that are attached to the digest of an image built for one platform. IO."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from drydock.attest import bom, brought, components, contents, licences, origins, provenance, vex
from drydock.build.job import Job
from drydock.build.loaded import LoadedFrom, read_loaded
from drydock.core.errors import UntrustedError
from drydock.core.files import compact, dumps
from drydock.lock import lockfile, proof
from drydock.model.record import dump
from drydock.oci import layout as oci
from drydock.registry.manifests import Manifest

LOCK, PROVENANCE = brought.LOCK, brought.PROVENANCE
TAG = "application/vnd.drydock.tag.v1+json"
RELEASE = "application/vnd.drydock.release.v1+json"
"""What earlier versions attached instead of TAG, for release tags only."""
BINDINGS = frozenset({TAG, RELEASE})
"""Artifact types that bind a tag to an image: `publish` makes them, they never come from elsewhere."""
PROOF = "application/vnd.drydock.proof.v1+json"
LICENCES = "application/vnd.drydock.licences.v1+json"
BOM = "application/spdx+json"
VEX = "application/vnd.openvex+json"
FILE_NAMES = {
    **brought.TYPES,
    TAG: "tag.json",
    RELEASE: "release.json",
    PROOF: "proof.json",
    LICENCES: "licences.json",
    BOM: "sbom.spdx.json",
    VEX: "vex.openvex.json",
}
"""Artifact type → file name."""
FOLDER = "attached"
"""Folder for the documents of a layout that was loaded from a bundle."""


class Attached(NamedTuple):
    """A document about an image."""

    media_type: str
    data: bytes

    @property
    def name(self) -> str:
        """Return its file name."""
        return FILE_NAMES[self.media_type]


def documents(job: Job, layout: Path, manifest: Manifest, subject: str) -> tuple[Attached, ...]:
    """Return the documents about an image. Lock and provenance come from the bundle, if a vouched one has them.

    Raises LicenceError, and UntrustedError if image and lock differ, if no one vouched for the image, or if the bill of
    materials is not valid SPDX.
    """
    pins = job.pins
    found = contents.read_contents(manifest.content, partial(oci.blob, layout), components.base_layers(pins))
    _check_lock(
        job, (*components.mismatches(job.variant, pins, found), *origins.problems(job, found, oci.read_config(layout)))
    )
    policy = licences.read_policy(job.root)
    inventory = licences.inventory(manifest.digest, found, policy)
    licences.enforce(inventory, policy)
    lock, statement = _of_the_build(job, layout, manifest, subject)
    parts = (
        *components.installed(found, components.locked(job.variant, pins), inventory),
        *components.ingredients(pins),
    )
    return (
        lock,
        Attached(LICENCES, compact(dump(inventory)).encode()),
        statement,
        _bom(job, manifest, parts),
        *statements(job, manifest, subject),
        *_proof(job),
    )


def _of_the_build(job: Job, layout: Path, manifest: Manifest, subject: str) -> tuple[Attached, Attached]:
    """Return lock and provenance: from the bundle, if a vouched one has them, else made on this machine.

    Raises UntrustedError for an image of a bundle that no one vouched for, unless its digest is recorded.
    """
    loaded = read_loaded(layout)
    if loaded and not loaded.vouched and job.recorded_digest != manifest.digest:
        raise UntrustedError(
            f"{job.variant.id} ({job.platform}): {manifest.digest} was loaded from bundle {loaded.bundle}, for which"
            " neither --key nor --digest vouched",
            hint=f"load it again with --key or --digest, or `invoke build --target {job.variant.id} --no-cache`",
        )
    found = _brought(job, layout, manifest, loaded) if loaded and loaded.vouched else {}
    if found:
        return Attached(LOCK, found[LOCK]), Attached(PROVENANCE, found[PROVENANCE])
    statement = provenance.statement(job, layout, manifest.digest, subject, os.environ)
    return (
        Attached(LOCK, lockfile.path_of(job.root, job.variant.id).read_bytes()),
        Attached(PROVENANCE, compact(statement).encode()),
    )


def _brought(job: Job, layout: Path, manifest: Manifest, loaded: LoadedFrom) -> dict[str, bytes]:
    """Return the documents from the image's bundle.

    Raises UntrustedError if they are about something else, or were changed since the bundle was loaded.
    """
    paths = {media_type: layout / FOLDER / name for media_type, name in brought.TYPES.items()}
    found = {media_type: path.read_bytes() for media_type, path in paths.items() if path.is_file()}
    hashes = {brought.TYPES[media_type]: hashlib.sha256(data).hexdigest() for media_type, data in found.items()}
    if hashes != loaded.documents:
        raise UntrustedError(
            f"{layout / FOLDER}: not the documents of bundle {loaded.bundle}", hint="load the bundle again"
        )
    about = brought.About(job.variant.id, job.platform, manifest.digest, job.inputs_sha256)
    brought.check(found, about, job.pins)
    return found


def _bom(job: Job, manifest: Manifest, parts: tuple[components.Component, ...]) -> Attached:
    subject = bom.BomSubject(f"drydock/{job.variant.id}", job.variant.vllm.version, manifest.digest, job.variant.epoch)
    text = bom.write(subject, parts)
    problems = bom.problems(text)
    if problems:
        raise UntrustedError(*(f"{job.variant.id}: invalid bill of materials: {problem}" for problem in problems))
    return Attached(BOM, text.encode())


def statements(job: Job, manifest: Manifest, subject: str) -> tuple[Attached, ...]:
    """Return what this project states about vulnerabilities of the image's packages; nothing if it states nothing."""
    file = vex.read_statements(job.root)
    product = vex.product_of(subject, manifest.digest)
    found = vex.document(file, job.variant.id, product, vex.pinned(job.variant, job.pins))
    return (Attached(VEX, dumps(found).encode()),) if found else ()


def _proof(job: Job) -> tuple[Attached, ...]:
    """Return the recorded test results if they are of exactly these inputs."""
    recorded = proof.read_proof(job.root, job.variant.id)
    if recorded is None or recorded.inputs_sha256 != job.inputs_sha256:
        return ()
    return (Attached(PROOF, dumps(dump(recorded)).encode()),)


def _check_lock(job: Job, mismatches: tuple[str, ...]) -> None:
    if mismatches:
        raise UntrustedError(
            *(f"{job.variant.id} ({job.platform}): {mismatch}" for mismatch in mismatches),
            hint="the image does not match its lock: build again with --no-cache",
        )
