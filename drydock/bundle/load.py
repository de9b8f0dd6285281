"""Load a bundle into the store, the kept images and, if requested, the engine. IO.

Content gets its final name only after its bytes were checked. A load that was killed resumes when it is run again, and
a completed one does nothing. Existing content is not replaced.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from drydock.attest import documents
from drydock.build import build
from drydock.build.build_job import ARCHITECTURES, ATTACHED, BuildOptions, image_name, layouts_lock, prepare_job
from drydock.bundle.archive import Archive, check_free_space
from drydock.bundle.bundle_records import BUNDLE, COMMIT, SOURCE, STORED, TITLE, Bundle, BundledImage, BundleOrigin
from drydock.bundle.bundle_trust import kept_image_folder
from drydock.core.console import as_lines, byte_progress
from drydock.core.errors import DrydockError, FetchError, InputError, suggest_nearest
from drydock.core.files import write_atomically
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.engine import daemon
from drydock.inputs import fetch, git_objects, supplied
from drydock.inputs.store import Store, whole_folder
from drydock.model.record import Record
from drydock.oci import image_layout


class LoadedImage(Record):
    """One image of a bundle."""

    variant: str
    platform: str
    digest: str
    reference: str
    """Name of the image in the engine; empty if it was not loaded into the engine."""
    rebuildable: bool
    """Whether this repository has the inputs that the image was built from, so that `build` and `publish` use it."""


class Loaded(Record):
    """What `bundle load --json` prints."""

    bundle: str
    origin: BundleOrigin
    images: tuple[LoadedImage, ...]
    files_new: int
    """Number of files added to the store."""
    not_included: tuple[str, ...]
    models: tuple[str, ...]
    """Folders of the models that were written."""
    models_left: tuple[str, ...]
    """Models of the bundle that were not, without --models."""
    signed: bool
    """Whether the signature was verified with --verify-key."""
    seconds: float


def format_loaded_bundle(loaded: Loaded) -> str:
    """Return the result as text."""
    signed = " (signature verified)" if loaded.signed else ""
    lines = [f"bundle {loaded.bundle}{signed}: {loaded.files_new} files added to the store"]
    for image in loaded.images:
        engine = f", in the engine as {image.reference}" if image.reference else ""
        lines.append(f"{image.variant} ({image.platform}) {image.digest}{engine}")
    lines += [f"model {folder}: each file has the hash that the bundle names" for folder in loaded.models]
    lines += [f"model {name}: not written; --models FOLDER writes it" for name in loaded.models_left]
    if not all(image.rebuildable for image in loaded.images):
        changed = " with uncommitted changes" if loaded.origin.changed else ""
        lines.append(
            f"the bundle was made from commit {loaded.origin.commit or 'unknown'}{changed}, which differs from this"
            " repository: check it out to `build` and `publish` its images"
        )
    lines += [f"not included, supply it to rebuild: {line}" for line in loaded.not_included]
    return as_lines(lines)


def add_supplied(bundle: Bundle, folders: Mapping[str, str], store: Store) -> None:
    """Add the files that only their vendor may distribute to the store."""
    contexts = {name for image in bundle.images for name in image.supplied}
    for name in sorted(set(folders) - contexts):
        raise InputError(f"--context {name}: unknown context for this bundle", hint=suggest_nearest(name, contexts))
    for image in bundle.images:
        for name in sorted(set(folders) & set(image.supplied)):
            supplied.bring_pinned_files(name, image.supplied[name], Path(folders[name]), store)


def read_bundle(archive: Archive) -> Bundle:
    """Return bundle.json. Raises InputError if the archive is not a bundle."""
    entries = archive.index().get("manifests")
    listed = entries if isinstance(entries, list) else []
    bundle_entry = next(
        (item for item in listed if isinstance(item, dict) and item.get("artifactType") == BUNDLE), None
    )
    if bundle_entry is None:
        raise InputError(f"{archive.path}: an OCI layout, but not a drydock bundle")
    with _valid_format(archive):
        return Bundle.model_validate(archive.json(archive.json(bundle_entry["digest"])["config"]["digest"]))


@contextlib.contextmanager
def _valid_format(archive: Archive) -> Iterator[None]:
    """Raise InputError for missing or unexpected fields in a bundle's documents."""
    try:
        yield
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        problem = str(error).splitlines()[0]
        raise InputError(f"{archive.path}: unsupported bundle format: {problem}") from error


def engine_platforms(images: Iterable[BundledImage], machine: str = "") -> dict[str, str]:
    """Return for each variant the platform to load into the engine: this machine's if included, else the first."""
    host_platform = ARCHITECTURES.get(machine or platform.machine(), "")
    platforms: dict[str, str] = {}
    for image in images:
        if image.platform == host_platform or image.variant not in platforms:
            platforms[image.variant] = image.platform
    return platforms


def load_image(loading: Loading, image: BundledImage, platforms: Mapping[str, str], project: Project) -> LoadedImage:
    """Load an image with its inputs, and into the engine if `platforms` names its platform."""
    with _valid_format(loading.archive):
        loading.add_inputs(image)
        if image.base:
            loading.write_base(image)
        loading.keep_image(image)
    reference = image_name(image.variant, image.digest)
    in_engine = platforms.get(image.variant) == image.platform
    if in_engine:
        daemon.ensure_engine()
        build.load_into_engine(kept_image_folder(image), reference)
    build.settle_checkout(
        project.root, reference, image.platform, {"layout": kept_image_folder(image)}, in_engine=in_engine
    )
    return describe_image(image, project, reference if in_engine else "")


def describe_image(image: BundledImage, project: Project, reference: str = "") -> LoadedImage:
    """Return what is said of an image of a bundle; `reference` is its name in the engine."""
    return LoadedImage(
        variant=image.variant,
        platform=image.platform,
        digest=image.digest,
        reference=reference,
        rebuildable=_same_inputs(image, project),
    )


def _same_inputs(image: BundledImage, project: Project) -> bool:
    try:
        job = prepare_job(project, image.variant, BuildOptions(platform=image.platform))
    except DrydockError:
        return False
    return job.inputs_sha256 == image.inputs_sha256


class Loading:
    """The state of one load."""

    def __init__(self, archive: Archive, store: Store) -> None:
        self.archive, self.store = archive, store
        self.files_new = 0

    def check_free_space(self, bundle: Bundle) -> None:
        """Raise DiskFullError if the disk has too little space for the missing blobs."""
        with _valid_format(self.archive):
            sizes = dict(blob for image in bundle.images for blob in self._missing(image))
        check_free_space(cache_home(), sum(sizes.values()))

    def add_inputs(self, image: BundledImage) -> None:
        """Add the files from which the image is rebuilt to the store."""
        layers = self._inputs(image)
        with byte_progress() as bar:
            task = bar.add_task(f"{image.variant}: {len(layers)} files", total=sum(item["size"] for item in layers))
            for item in layers:
                self._input(item)
                bar.advance(task, item["size"])

    def write_base(self, image: BundledImage) -> None:
        """Write the layout of a base image."""
        final = fetch.image_folder(str(image.base), image.platform, self.store)
        if not image_layout.is_intact_layout(final):
            with whole_folder(final, replace_unless=image_layout.is_intact_layout) as layout:
                self._write_layout(layout, str(image.base), image.platform)

    def keep_image(self, image: BundledImage) -> None:
        """Keep the image where this machine keeps its own, with the bundle's documents about it.

        Raises FetchError if the bundle lacks a part of the image.
        """
        final = kept_image_folder(image)
        with layouts_lock(image.variant, image.platform):
            if image_layout.is_sound_layout(final):
                return
            with whole_folder(final, replace=True) as layout:
                self._write_layout(layout, image.digest, image.platform)
                if not image_layout.is_sound_layout(layout):
                    raise FetchError(f"{self.archive.path}: {image.digest}: a blob does not match its descriptor")
                self._write_documents(layout, image)

    def _write_documents(self, layout: Path, image: BundledImage) -> None:
        """Write the documents about an image next to its layout. Raises InputError if the bundle lacks one."""
        manifests = map(self.archive.json, image.documents)
        digests = {item["artifactType"]: item["layers"][0]["digest"] for item in manifests}
        missing = sorted(documents.REQUIRED - digests.keys())
        if missing:
            raise InputError(
                f"{self.archive.path}: {image.variant} ({image.platform}): the bundle has no {', '.join(missing)}",
                hint="make the bundle again with this version of drydock",
            )
        for kind, name in documents.ABOUT_IMAGE.items():
            if kind in digests:
                write_atomically(layout / ATTACHED / name, self.archive.data(digests[kind]))

    # --- missing content --------------------------------------------------------------------------------------------

    def _missing(self, image: BundledImage) -> Iterator[tuple[str, int]]:
        """Yield digest and size of each blob that this machine does not have."""
        for item in self._inputs(image):
            if not self._has(item):
                yield item["digest"], self.archive.size(item["digest"])
        layouts = [] if image_layout.is_sized_layout(kept_image_folder(image)) else [image.digest]
        if image.base and not fetch.image_folder(image.base, image.platform, self.store).is_dir():
            layouts.append(image.base)
        for digest in layouts:
            yield from ((blob, self.archive.size(blob)) for blob in self._reachable(digest, image.platform))

    def _inputs(self, image: BundledImage) -> list[dict[str, Any]]:
        """Return the descriptors of an image's input files."""
        layers: list[dict[str, Any]] = self.archive.json(image.inputs)["layers"]
        return layers

    def _has(self, item: dict[str, Any]) -> bool:
        if item["mediaType"] == SOURCE:
            return git_objects.pack_path(item["annotations"][COMMIT], self.store).is_file()
        return self.store.has(item["digest"].removeprefix("sha256:"), item["size"])

    # --- single files -----------------------------------------------------------------------------------------------

    def _input(self, item: dict[str, Any]) -> None:
        if item["mediaType"] not in (*STORED, SOURCE):
            raise InputError(
                f"{self.archive.path}: unsupported input type {item['mediaType']!r}",
                hint="make the bundle again with this version of drydock",
            )
        if self._has(item):
            return
        if item["mediaType"] == SOURCE:
            commit = item["annotations"][COMMIT]
            git_objects.add_objects(
                f"{self.archive.path}: source code", commit, self.archive.chunks(item["digest"]), self.store
            )
        else:
            sha256 = item["digest"].removeprefix("sha256:")
            self.store.add(self.archive.chunks(item["digest"]), sha256, item["annotations"][TITLE])
        self.files_new += 1

    def _write_layout(self, layout: Path, digest: str, platform: str) -> None:
        (layout / "blobs" / "sha256").mkdir(parents=True)
        for item in self._reachable(digest, platform):
            self.archive.size(item)  # raises InputError unless it is a digest, which is safe in a path
            with image_layout.path_of_blob(layout, item).open("wb") as file:
                file.writelines(self.archive.chunks(item))
                file.flush()
                os.fsync(file.fileno())
        manifest = self.archive.json(digest)
        described = {"mediaType": manifest["mediaType"], "digest": digest, "size": self.archive.size(digest)}
        image_layout.write_index(layout, described)

    def _reachable(self, digest: str, platform: str) -> list[str]:
        """Return the digests of an image's blobs; of an index only the image for the given platform."""
        manifest = self.archive.json(digest)
        if "manifests" not in manifest:
            return self._blobs(digest)
        system, _, architecture = platform.partition("/")
        platform_fields = {"os": system, "architecture": architecture}
        inner = (
            item["digest"] for item in manifest["manifests"] if platform_fields.items() <= item["platform"].items()
        )
        return [digest, *(blob for item in inner for blob in self._blobs(item))]

    def _blobs(self, digest: str) -> list[str]:
        """Return the digests of an image's blobs, each once."""
        manifest = self.archive.json(digest)
        layers = [item["digest"] for item in manifest["layers"]]
        return list(dict.fromkeys([digest, manifest["config"]["digest"], *layers]))
