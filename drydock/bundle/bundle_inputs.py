"""The inputs of a bundled image: all files that its lock pins, fetched into the store, and its base image. IO."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from drydock.build.build_job import Job
from drydock.bundle.bundle_records import (
    ARCHIVE,
    COMMIT,
    DEB,
    INPUTS,
    SDIST,
    SOURCE,
    TITLE,
    WHEEL,
    Blob,
    make_artifact,
    make_title_annotation,
)
from drydock.core.files import file_sha256
from drydock.inputs import git_objects, sources, wheels
from drydock.inputs.base_images import fetch_base
from drydock.inputs.debs import fetch_packages
from drydock.inputs.store import Store, default_store
from drydock.model.locked import (
    LockedDeb,
    LockedDebianBase,
    LockedImageBase,
    LockedPlatform,
    LockedWheel,
)
from drydock.oci.manifest import Manifest


class Gathered(NamedTuple):
    """The inputs of one image."""

    manifest: Manifest
    """Manifest whose layers are the input files."""
    blobs: tuple[Blob, ...]
    base: Path | None
    """OCI layout of the base, if it is an image."""


def gather_inputs(job: Job, subject: Manifest) -> Gathered:
    """Fetch the inputs of a build into the store, and list them.

    Raises FetchError if an input cannot be downloaded, or was changed on the disk.
    """
    pins, store = job.lock.platforms[job.platform], default_store()
    _fetch_missing(job, pins, store)
    files = dict([*_list_stored_files(pins, store), *_list_source_blobs(pins, store)])
    entries = [files[key] for key in sorted(files)]
    layers = [blob.descriptor(media_type, **annotations) for blob, media_type, annotations in entries]
    base = fetch_base(pins.base, job.platform, store) if isinstance(pins.base, LockedImageBase) else None
    return Gathered(make_artifact(INPUTS, layers, subject=subject), tuple(blob for blob, _, _ in entries), base)


Entry = tuple[str, tuple[Blob, str, dict[str, str]]]
"""Sort key → blob, media type, annotations."""


def _fetch_missing(job: Job, pins: LockedPlatform, store: Store) -> None:
    """Fetch missing inputs, including those that a build does not fetch if it reuses a base made earlier."""
    target = wheels.find_image_environment(job.variant.python, job.platform, job.variant.base)
    if isinstance(pins.base, LockedDebianBase):
        fetch_packages(_list_locked_debs(pins.base), pins.base.snapshot, store, os.environ)
    wheels.fetch_wheels(_list_locked_wheels(pins), target, store, os.environ, job.variant.indexes)
    for source in pins.sources:
        sources.fetch_source(source, target, store)
        if source.commit:
            git_objects.check_objects(source.name, source.commit, store, os.environ)


def _list_locked_debs(base: LockedDebianBase) -> tuple[LockedDeb, ...]:
    return (*base.packages, *base.bootstrap)


def _list_locked_wheels(pins: LockedPlatform) -> tuple[LockedWheel, ...]:
    return (*(wheel for layer in pins.layers.values() for wheel in layer), *pins.build, *pins.tools)


def _list_stored_files(pins: LockedPlatform, store: Store) -> Iterator[Entry]:
    """Yield the packages in the store."""
    debs = _list_locked_debs(pins.base) if isinstance(pins.base, LockedDebianBase) else ()
    sdists = [source.sdist for source in pins.sources if source.sdist]
    kinds: tuple[tuple[str, str, tuple[LockedWheel | LockedDeb, ...]], ...] = (
        (DEB, "debs", debs),
        (WHEEL, "wheels", _list_locked_wheels(pins)),
        (SDIST, "sources", tuple(sdists)),
    )
    for kind, folder, files in kinds:
        for file in files:
            title = f"{folder}/{Path(file.filename).name}"
            blob = Blob(f"sha256:{file.sha256}", file.size, store.path(file.sha256))
            yield f"{title} {file.sha256}", (blob, kind, make_title_annotation(title))


def _list_source_blobs(pins: LockedPlatform, store: Store) -> Iterator[Entry]:
    """Yield release archives, and the source code from git: for each commit, its objects in one file."""
    for source in pins.sources:
        if source.sha256:
            title, path = f"sources/{source.filename}", store.path(source.sha256)
            blob = Blob(f"sha256:{source.sha256}", path.stat().st_size, path)
            yield f"{title} {source.sha256}", (blob, ARCHIVE, make_title_annotation(title))
        elif source.commit:
            title, pack = f"sources/{source.name}.pack", git_objects.pack_path(str(source.commit), store)
            blob = Blob(f"sha256:{file_sha256(pack)}", pack.stat().st_size, pack)
            yield f"{title} {blob.digest}", (blob, SOURCE, {TITLE: title, COMMIT: str(source.commit)})
