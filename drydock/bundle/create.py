"""Targets that are built → a bundle. IO.

The same builds and the same repository give the same bytes, whenever and wherever it is made.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drydock.attest import signing
from drydock.bundle import archive
from drydock.bundle.contents import (
    BUNDLE,
    NAME,
    REPOSITORY_FILE,
    Blob,
    Bundle,
    BundledImage,
    BundleOrigin,
    artifact,
    blob,
    titled,
)
from drydock.bundle.inputs import Gathered, gather
from drydock.config import matrix
from drydock.core.errors import InputError
from drydock.core.files import disk_full, dumps
from drydock.core.paths import ROOT, cache_home
from drydock.inputs.store import Store, default_store
from drydock.model.locked import LockedImageBase
from drydock.model.record import Record, dump
from drydock.publish import push
from drydock.registry.manifests import Manifest


class Created(Record):
    """What `bundle --json` prints."""

    file: str
    bundle: str
    """Digest of the index: what `bundle.load --digest` compares."""
    size: int
    images: Mapping[str, Mapping[str, str]]
    """Variant → platform → digest."""
    blobs: int
    not_included: tuple[str, ...]
    """Files that only their vendor may hand out."""
    signed: bool
    seconds: float


class BundledPart(NamedTuple):
    """One image of a bundle."""

    record: BundledImage
    layout: push.Layout
    documents: tuple[Manifest, ...]
    inputs: Gathered
    blobs: tuple[Blob, ...]


Listed = dict[str, dict[str, Any]]
"""Digest → its entry in the index."""


def create(targets: Sequence[str], output: Path, *, key: str = "", root: Path = ROOT) -> Created:
    """Write one archive of everything that targets need, signed where a key is given.

    Raises InputError for what was not built, FetchError for what cannot be had, LicenceError or UntrustedError for
    what `publish` would refuse, DiskFullError.
    """
    started = time.monotonic()
    if output.is_dir():
        raise InputError(f"--output {output}: a folder, expected a file's name")
    variants = matrix.read_matrix(root)
    chosen = {variant.id: variant for variant in (matrix.find(variants, target) for target in targets)}
    layouts = {name: push.built(variant, root) for name, variant in sorted(chosen.items())}
    with disk_full(cache_home()), tempfile.TemporaryDirectory(prefix="drydock-bundle-", dir=_roomy()) as folder:
        parts = [_part(layout, Path(folder)) for found in layouts.values() for layout in found]
        listed, blobs = _assemble(parts, layouts, root)
        index = archive.index_of(listed)
        archive.write(output, index, blobs, signing.sign_data(index, key) if key else b"")
    return Created(
        file=str(output),
        bundle=blob(index).digest,
        size=output.stat().st_size,
        images=_images(parts),
        blobs=len({item.digest for item in blobs}),
        not_included=tuple(line for part in parts for line in left_out(part.record)),
        signed=bool(key),
        seconds=round(time.monotonic() - started, 1),
    )


def report(created: Created) -> str:
    """Return what people read."""
    signed = " (signed)" if created.signed else ""
    lines = [f"{created.file} ({created.size / 1e6:.0f} MB, {created.blobs} blobs)", f"bundle {created.bundle}{signed}"]
    lines += [f"{name} ({platform}) {digest}" for name, found in created.images.items()
              for platform, digest in found.items()]  # fmt: skip
    lines += [f"not included, bring it yourself: {line}" for line in created.not_included]
    return "\n".join(lines) + "\n"


def left_out(image: BundledImage, store: Store | None = None) -> list[str]:
    """Return a line for each file that is named and not in the bundle, nor in the store."""
    return [
        f"{image.variant}: --context {name}=FOLDER with {file.filename} (sha256 {file.sha256}, {file.size} bytes)"
        for name, files in sorted(image.supplied.items())
        for file in files
        if not (store and store.has(file.sha256, file.size))
    ]


def _part(layout: push.Layout, folder: Path) -> BundledPart:
    from drydock.attest import documents  # noqa: PLC0415 - half a second of import that no other verb needs

    job = layout.job
    said = documents.documents(job, layout.folder, layout.manifest, f"drydock/{job.variant.id}")
    attached = [blob(item.data) for item in said]
    manifests = tuple(
        artifact(item.media_type, [data.described(item.media_type, **titled(item.name))], subject=layout.manifest)
        for item, data in zip(said, attached, strict=True)
    )
    inputs = gather(job, layout.manifest, folder)
    base = job.pins.base
    record = BundledImage(
        variant=job.variant.id,
        platform=job.platform,
        digest=layout.manifest.digest,
        inputs_sha256=job.inputs_sha256,
        inputs=inputs.manifest.digest,
        base=base.digest if isinstance(base, LockedImageBase) else None,
        documents=tuple(manifest.digest for manifest in manifests),
        supplied=job.pins.supplied,
    )
    own = (blob(manifest.data) for manifest in (*manifests, inputs.manifest, layout.manifest))
    layers = (Blob(item["digest"], item["size"], layout.blob(item["digest"])) for item in layout.descriptors)
    return BundledPart(
        record, layout, manifests, inputs, (*attached, *inputs.blobs, *own, *layers, *_base_blobs(inputs.base))
    )


def _base_blobs(layout: Path | None) -> list[Blob]:
    files = sorted((layout / "blobs" / "sha256").iterdir()) if layout else []
    return [Blob(f"sha256:{path.name}", path.stat().st_size, path) for path in files]


def _assemble(
    parts: Sequence[BundledPart], layouts: Mapping[str, Sequence[push.Layout]], root: Path
) -> tuple[Listed, list[Blob]]:
    """Return the index's entries and all blobs. Names are what `oras` and `skopeo` call things by."""
    listed: Listed = {}
    blobs = [blob(b"{}"), *(item for part in parts for item in part.blobs)]
    for variant, found in layouts.items():
        image = push.combined(found)
        blobs.append(blob(image.data))
        _list(listed, image, variant)
    for part in parts:
        name = f"{part.record.variant}-{part.record.platform.replace('/', '-')}"
        if part.record.digest not in listed:
            _list(listed, part.layout.manifest, name)
        _list(listed, part.inputs.manifest, f"{name}-inputs")
        for manifest in part.documents:
            _list(listed, manifest)
        if part.inputs.base:
            entry = json.loads((part.inputs.base / "index.json").read_bytes())["manifests"][0]
            listed[entry["digest"]] = {**entry, "annotations": {NAME: f"{name}-base"}}
    manifest, own = _own(parts, root)
    _list(listed, manifest, "bundle")
    return listed, [*blobs, *own]


def _own(parts: Sequence[BundledPart], root: Path) -> tuple[Manifest, list[Blob]]:
    """Return the bundle's own manifest: which image is which, and the repository's files that they were made from."""
    from drydock.attest.provenance import read_origin  # noqa: PLC0415 - as above

    origin = read_origin(root)
    bundle = Bundle(
        schema_=1,
        origin=BundleOrigin(repository=origin.repository, commit=origin.commit, changed=origin.dirty),
        images=tuple(part.record for part in parts),
    )
    config = blob(dumps(dump(bundle)).encode())
    files = {
        name: blob((root / name).read_bytes())
        for name in _repository_files(root, {part.record.variant for part in parts})
    }
    layers = [item.described(REPOSITORY_FILE, **titled(name)) for name, item in files.items()]
    manifest = artifact(BUNDLE, layers, config=config.described(BUNDLE))
    return manifest, [config, *files.values(), blob(manifest.data)]


def _repository_files(root: Path, variants: Collection[str]) -> list[str]:
    generated = {f"images/{name}/{file}" for name in variants for file in ("Dockerfile", "lock.json", "profile.json")}
    rows = (variant for variant in matrix.read_matrix(root) if variant.id in variants)
    stacks = {name for variant in rows for name in matrix.stack_files(root, variant)}
    return [matrix.MATRIX, *sorted(generated | stacks)]


def _list(listed: Listed, manifest: Manifest, name: str = "") -> None:
    content = manifest.content
    kind = {"artifactType": content["artifactType"]} if "artifactType" in content else {}
    listed[manifest.digest] = {**manifest.descriptor(), **kind, **({"annotations": {NAME: name}} if name else {})}


def _images(parts: Iterable[BundledPart]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for part in parts:
        found.setdefault(part.record.variant, {})[part.record.platform] = part.record.digest
    return found


def _roomy() -> Path:
    """Return a folder for temporary gigabytes: on the disk of the cache, since /tmp may be memory."""
    folder = default_store().home / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
