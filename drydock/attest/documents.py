"""The documents that are attached to the digest of an image built for one platform. IO."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from drydock.attest import components, contents, licences, provenance
from drydock.build import adoption
from drydock.build.build_job import ATTACHED, Job
from drydock.core.errors import UntrustedError
from drydock.core.files import format_compact_json, format_json
from drydock.lock import lockfile, proof
from drydock.lock.recipes import recipes_lock
from drydock.model.record import dump_record
from drydock.oci import image_layout
from drydock.oci.manifest import Manifest

LOCK = "application/vnd.drydock.lock.v1+json"
PROVENANCE = "application/vnd.in-toto+json"
TAG = "application/vnd.drydock.tag.v1+json"
RELEASE = "application/vnd.drydock.release.v1+json"
"""What earlier versions attached instead of TAG, for release tags only."""
BINDINGS = frozenset({TAG, RELEASE})
"""Artifact types that bind a tag to an image: `publish` makes them, they never come from elsewhere."""
PROOF = "application/vnd.drydock.proof.v2+json"
EARLIER_PROOF = "application/vnd.drydock.proof.v1+json"
"""Attached until December 2026; it is still read."""
LICENCES = "application/vnd.drydock.licences.v1+json"
BOM = "application/spdx+json"
MODEL_BOM = "application/vnd.cyclonedx+json"
"""Of a model: SPDX 2.3 has no kind for one."""
ABOUT_IMAGE = {
    LOCK: "lock.json",
    LICENCES: "licences.json",
    PROVENANCE: "provenance.json",
    BOM: "sbom.spdx.json",
    PROOF: "proof.json",
}
"""Artifact type → file name of what is attached to an image, in this order."""
REQUIRED = frozenset(ABOUT_IMAGE) - {PROOF}
"""Artifact types that every image has."""
FILE_NAMES = {
    **ABOUT_IMAGE,
    EARLIER_PROOF: "proof.json",
    TAG: "tag.json",
    RELEASE: "release.json",
    MODEL_BOM: "bom.cdx.json",
}
"""Artifact type → file name of all that is attached."""


class Attached(NamedTuple):
    """A document about an image."""

    media_type: str
    data: bytes

    @property
    def name(self) -> str:
        """Return its file name."""
        return FILE_NAMES[self.media_type]


def make_documents(job: Job, layout: Path, manifest: Manifest, subject: str) -> tuple[Attached, ...]:
    """Return the documents about an image. Those that a bundle brought with the image are returned as they are.

    Raises LicenceError, and UntrustedError if image and lock differ, or if the bill of materials is not valid SPDX.
    """
    if job.is_adopted:
        if (layout / ATTACHED).is_dir():
            return tuple(_of_the_bundle(layout / ATTACHED))
        return make_adopted_documents(job, manifest, subject, image_layout.read_config(layout)["config"]["Labels"])
    pins = job.pins
    image_contents = contents.read_contents(
        manifest.content, partial(image_layout.path_of_blob, layout), components.base_layers(pins)
    )
    _check_lock(job, components.find_lock_mismatches(job.variant, pins, image_contents))
    policy = licences.read_policy(job.project)
    inventory = licences.make_licence_inventory(manifest.digest, image_contents, policy)
    licences.enforce_licences(inventory, policy)
    if (layout / ATTACHED).is_dir():
        return tuple(_of_the_bundle(layout / ATTACHED))
    parts = (
        *components.list_installed_components(
            image_contents, components.list_locked_components(job.variant, pins), inventory
        ),
        *components.list_build_inputs(pins),
        *components.published_recipes(recipes_lock.read_lock(job.project)),
    )
    statement = provenance.make_statement(job, layout, manifest.digest, subject, os.environ)
    return _attach_documents(job, manifest, inventory, statement, parts)


def make_adopted_documents(
    job: Job, manifest: Manifest, subject: str, labels: Mapping[str, str]
) -> tuple[Attached, ...]:
    """Return the documents about an adopted image, given its labels.

    They vouch for the two added layers. Of the base they give the digest and the licences that its label states, and
    nothing of its contents. Raises LicenceError if the policy denies such a licence.
    """
    policy = licences.read_policy(job.project)
    base = components.make_base_component(job.pins, labels.get(adoption.LICENCES, ""))
    licences.refuse_licence(base.licence, base.name, policy)
    inventory = licences.Inventory(
        image=manifest.digest, packages=(licences.judge_base(base.name, base.version, base.licence, policy),)
    )
    layers = manifest.content["layers"][-adoption.ADDED_LAYERS :]
    parts = (
        base if licences.is_spdx(base.licence) else base._replace(licence=""),
        *(components.make_layer_component(layer["digest"]) for layer in layers),
        *components.published_recipes(recipes_lock.read_lock(job.project)),
    )
    statement = provenance.make_adopted_statement(job, layers, manifest.digest, subject, os.environ)
    return _attach_documents(job, manifest, inventory, statement, parts)


def _attach_documents(
    job: Job,
    manifest: Manifest,
    inventory: licences.Inventory,
    statement: Mapping[str, Any],
    parts: tuple[components.Component, ...],
) -> tuple[Attached, ...]:
    return (
        Attached(LOCK, lockfile.path_of_lock(job.project, job.variant.id).read_bytes()),
        Attached(LICENCES, format_compact_json(dump_record(inventory)).encode()),
        Attached(PROVENANCE, format_compact_json(statement).encode()),
        _make_bom_document(job, manifest, parts),
        *_make_proof_document(job),
    )


def _of_the_bundle(folder: Path) -> Iterator[Attached]:
    for kind, name in ABOUT_IMAGE.items():
        path = folder / name
        if path.is_file():
            yield Attached(kind, path.read_bytes())


def _make_bom_document(job: Job, manifest: Manifest, parts: tuple[components.Component, ...]) -> Attached:
    from drydock.attest import bom  # noqa: PLC0415 - spdx_tools takes 0.3 s to import, and few verbs need it

    subject = bom.BomSubject(f"drydock/{job.variant.id}", job.variant.vllm.version, manifest.digest, job.variant.epoch)
    text = bom.make_bom(subject, parts)
    problems = bom.find_spdx_violations(text)
    if problems:
        raise UntrustedError(*(f"{job.variant.id}: invalid bill of materials: {problem}" for problem in problems))
    return Attached(BOM, text.encode())


def _make_proof_document(job: Job) -> tuple[Attached, ...]:
    """Return what was shown of this foundation and of this image; nothing of earlier ones."""
    current = proof.select_current(job.record, job.foundation_key, job.inputs_sha256)
    return (Attached(PROOF, format_json(dump_record(current)).encode()),) if current != proof.Proof() else ()


def _check_lock(job: Job, mismatches: tuple[str, ...]) -> None:
    if mismatches:
        raise UntrustedError(
            *(f"{job.variant.id} ({job.platform}): {mismatch}" for mismatch in mismatches),
            hint="the image does not match its lock: build again with --no-cache",
        )
