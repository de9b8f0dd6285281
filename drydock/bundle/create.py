"""Create a bundle of built images. IO.

The same builds and the same repository always give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drydock.attest import documents
from drydock.attest.provenance import read_origin
from drydock.bundle.bundle_inputs import Gathered, gather_inputs
from drydock.bundle.bundle_models import GatheredModel
from drydock.bundle.bundle_records import (
    BUNDLE,
    NAME,
    REPOSITORY_FILE,
    Blob,
    Bundle,
    BundledImage,
    BundledModel,
    BundleOrigin,
    make_artifact,
    make_blob,
    make_title_annotation,
)
from drydock.config import matrix
from drydock.config.rows import MATRIX
from drydock.config.stack_files import list_stack_files
from drydock.core.console import as_lines
from drydock.core.errors import InputError
from drydock.core.files import explain_unwritable, format_json, make_folder, parse_any_json
from drydock.core.project import Project
from drydock.inputs.store import Store
from drydock.lock import base_lists
from drydock.lock.recipes import recipes_lock
from drydock.model.locked import LockedImageBase
from drydock.model.record import Record, dump_record
from drydock.oci.manifest import Manifest
from drydock.publish import push


class Created(Record):
    """What `bundle create --json` prints."""

    file: str
    bundle: str
    """Digest of the index, as `bundle load --digest` expects it."""
    size: int
    images: Mapping[str, Mapping[str, str]]
    """Variant → platform → digest."""
    models: Mapping[str, str]
    """Name of a model's folder → where it is from: `org/name of HUB at REVISION`."""
    blobs: int
    not_included: tuple[str, ...]
    """Files that only their vendor may distribute."""
    signed: bool
    seconds: float


class BundledPart(NamedTuple):
    """An image of the bundle, for one platform."""

    record: BundledImage
    layout: push.Layout
    documents: tuple[Manifest, ...]
    inputs: Gathered
    blobs: tuple[Blob, ...]


Entries = dict[str, dict[str, Any]]
"""Digest → entry in the index."""


def check_output(output: Path) -> None:
    """Raise InputError if the file cannot be written."""
    if output.is_dir():
        raise InputError(f"--output {output}: expected a file, found a folder")
    with explain_unwritable(output, "--output FILE"):
        make_folder(output.parent)
    if not os.access(output.parent, os.W_OK):
        raise InputError(
            f"--output {output}: the folder is not writable", hint="choose another file with --output FILE"
        )


def format_created_bundle(created: Created) -> str:
    """Return the result as text."""
    signed = " (signed)" if created.signed else ""
    lines = [f"{created.file} ({created.size / 1e6:.0f} MB, {created.blobs} blobs)", f"bundle {created.bundle}{signed}"]
    for name, platforms in created.images.items():
        lines += [f"{name} ({platform}) {digest}" for platform, digest in platforms.items()]
    lines += [f"model {name}: {source}" for name, source in created.models.items()]
    lines += [f"not included, supply it yourself: {line}" for line in created.not_included]
    return as_lines(lines)


def not_included(image: BundledImage, store: Store | None = None) -> list[str]:
    """Return a line for each file that only its vendor may distribute, unless the store has it."""
    return [
        f"{image.variant}: --context {name}=FOLDER with {file.filename} (sha256 {file.sha256}, {file.size} bytes)"
        for name, files in sorted(image.supplied.items())
        for file in files
        if not (store and store.has(file.sha256, file.size))
    ]


def make_bundled_part(layout: push.Layout) -> BundledPart:
    """Return an image with its documents and the inputs to rebuild it. Raises what making the documents raises."""
    job = layout.job
    attached, manifests = [], []
    for item in documents.make_documents(job, layout.folder, layout.manifest, f"drydock/{job.variant.id}"):
        data = make_blob(item.data)
        layer = data.descriptor(item.media_type, **make_title_annotation(item.name))
        attached.append(data)
        manifests.append(make_artifact(item.media_type, [layer], subject=layout.manifest))
    inputs = gather_inputs(job, layout.manifest)
    pins = job.lock.platforms[job.platform]
    record = BundledImage(
        variant=job.variant.id,
        platform=job.platform,
        digest=layout.manifest.digest,
        inputs_sha256=job.inputs_sha256,
        inputs=inputs.manifest.digest,
        base=pins.base.digest if isinstance(pins.base, LockedImageBase) else None,
        documents=tuple(manifest.digest for manifest in manifests),
        supplied=pins.supplied,
    )
    manifest_blobs = [make_blob(manifest.data) for manifest in (*manifests, inputs.manifest, layout.manifest)]
    layers = [Blob(item["digest"], item["size"], layout.blob(item["digest"])) for item in layout.descriptors]
    blobs = (*attached, *inputs.blobs, *manifest_blobs, *layers, *_base_blobs(inputs.base))
    return BundledPart(record, layout, tuple(manifests), inputs, blobs)


def _base_blobs(layout: Path | None) -> list[Blob]:
    files = sorted((layout / "blobs" / "sha256").iterdir()) if layout else []
    return [Blob(f"sha256:{path.name}", path.stat().st_size, path) for path in files]


def name_model_source(model: BundledModel) -> str:
    """Return where a model is from, for people."""
    folder = model.folder
    return f"{folder.name} of {folder.hub} at {folder.revision}" if folder.hub else "files as they are, of no hub"


def assemble_index(
    parts: Sequence[BundledPart],
    layouts: Mapping[str, Sequence[push.Layout]],
    models: Sequence[GatheredModel],
    project: Project,
) -> tuple[Entries, list[Blob]]:
    """Return the index's entries and all blobs. The names in the index are those that `oras` and `skopeo` use."""
    entries: Entries = {}
    blobs = [make_blob(b"{}"), *(item for part in parts for item in part.blobs)]
    for variant, variant_layouts in layouts.items():
        image = push.combine_manifests(variant_layouts)
        blobs.append(make_blob(image.data))
        _add_manifest(entries, image, variant)
    for part in parts:
        name = f"{part.record.variant}-{part.record.platform.replace('/', '-')}"
        if part.record.digest not in entries:
            _add_manifest(entries, part.layout.manifest, name)
        _add_manifest(entries, part.inputs.manifest, f"{name}-inputs")
        for manifest in part.documents:
            _add_manifest(entries, manifest)
        if part.inputs.base:
            entry = parse_any_json((part.inputs.base / "index.json").read_bytes())["manifests"][0]
            entries[entry["digest"]] = {**entry, "annotations": {NAME: f"{name}-base"}}
    for model in models:
        blobs += model.blobs
        _add_manifest(entries, model.manifest, f"model-{model.record.name}")
    manifest, bundle_blobs = _bundle_manifest(parts, [model.record for model in models], project)
    _add_manifest(entries, manifest, "bundle")
    return entries, [*blobs, *bundle_blobs]


def _bundle_manifest(
    parts: Sequence[BundledPart], models: Sequence[BundledModel], project: Project
) -> tuple[Manifest, list[Blob]]:
    """Return the bundle's own manifest and its blobs: bundle.json, and the repository's files behind the images."""
    origin = read_origin(project)
    bundle = Bundle(
        schema_=1,
        origin=BundleOrigin(repository=origin.repository, commit=origin.commit, changed=origin.dirty),
        images=tuple(part.record for part in parts),
        models=tuple(models),
    )
    config = make_blob(format_json(dump_record(bundle)).encode())
    paths = _repository_files(project, {part.record.variant for part in parts})
    files = {project.recorded(path): make_blob(path.read_bytes()) for path in paths}
    layers = [item.descriptor(REPOSITORY_FILE, **make_title_annotation(name)) for name, item in files.items()]
    manifest = make_artifact(BUNDLE, layers, config=config.descriptor(BUNDLE))
    return manifest, [config, *files.values(), make_blob(manifest.data)]


def _repository_files(project: Project, variants: Collection[str]) -> list[Path]:
    paths = {project / f"images/{name}/{file}" for name in variants for file in ("Dockerfile", "lock.json")}
    for variant in matrix.read_matrix(project):
        if variant.id in variants:
            paths.update(list_stack_files(project, variant))
    names = [recipes_lock.LOCK, recipes_lock.FACTS, *map(base_lists.name_file, variants)]
    paths.update(path for name in names if (path := project / name).is_file())
    return [*project.list_layer_files(MATRIX), *sorted(paths)]


def _add_manifest(entries: Entries, manifest: Manifest, name: str = "") -> None:
    """Add a manifest to the index's entries."""
    entry = manifest.descriptor()
    if "artifactType" in manifest.content:
        entry["artifactType"] = manifest.content["artifactType"]
    if name:
        entry["annotations"] = {NAME: name}
    entries[manifest.digest] = entry


def map_images(parts: Iterable[BundledPart]) -> dict[str, dict[str, str]]:
    """Return row → platform → digest."""
    digests: dict[str, dict[str, str]] = {}
    for part in parts:
        digests.setdefault(part.record.variant, {})[part.record.platform] = part.record.digest
    return digests
