"""Load a bundle into the store, the kept images and, if requested, the engine. IO.

Content gets its final name only after its bytes were checked. A load that was killed resumes when it is run again, and
a completed one does nothing. Existing content is not replaced.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple, cast

from pydantic import ValidationError

from drydock.attest import signing
from drydock.build import build
from drydock.build.job import ARCHITECTURES, BuildOptions, image_name, layouts_folder, layouts_lock, prepare
from drydock.bundle.archive import Archive, check_free_space
from drydock.bundle.contents import BUNDLE, COMMIT, SOURCE, STORED, TITLE, Bundle, BundledImage, BundleOrigin
from drydock.bundle.create import not_included
from drydock.bundle.inputs import write_index
from drydock.core.console import byte_progress
from drydock.core.errors import (
    DrydockError,
    FetchError,
    InputError,
    NotReproducibleError,
    UntrustedError,
    nearest,
)
from drydock.core.paths import ROOT, cache_home
from drydock.core.tar import members, open_tar
from drydock.engine import daemon
from drydock.inputs import fetch, supplied
from drydock.inputs.store import Store, default_store, whole_folder
from drydock.model.record import Record
from drydock.oci import layout as oci


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
    """What `bundle.load --json` prints."""

    bundle: str
    origin: BundleOrigin
    images: tuple[LoadedImage, ...]
    files_new: int
    """Number of files added to the store."""
    not_included: tuple[str, ...]
    signed: bool
    """Whether the signature was verified with --key."""
    seconds: float


class LoadOptions(NamedTuple):
    """Options of `bundle.load`."""

    engine: bool = False
    """Also load the images for this machine's platform into the engine."""
    digest: str = ""
    """Expected digest of the bundle."""
    contexts: Mapping[str, str] = MappingProxyType({})
    """Context → folder with files that only their vendor may distribute."""
    key: str = ""
    """Public key whose owner must have signed the bundle."""


DEFAULTS = LoadOptions()


def load(path: Path, options: LoadOptions = DEFAULTS, *, root: Path = ROOT) -> Loaded:
    """Load a bundle.

    Raises InputError, FetchError, UntrustedError, DiskFullError, or NotReproducibleError if this machine built another
    image from the same inputs.
    """
    started = time.monotonic()
    archive = Archive(path)
    if options.digest and archive.digest != options.digest:
        raise UntrustedError(f"{path}: digest is {archive.digest}, expected {options.digest}")
    if options.key:
        _verify_signature(archive, options.key)
    bundle = read_bundle(archive)
    for image in bundle.images:
        _check_own_build(image)
    loading = _Loading(archive, default_store())
    loading.check_free_space(bundle)
    _add_supplied(bundle, options.contexts, loading.store)
    platforms = engine_platforms(bundle.images) if options.engine else {}
    images = tuple(_load_image(loading, image, platforms, root) for image in bundle.images)
    return Loaded(
        bundle=archive.digest,
        origin=bundle.origin,
        images=images,
        files_new=loading.files_new,
        not_included=tuple(line for image in bundle.images for line in not_included(image, loading.store)),
        signed=bool(options.key),
        seconds=round(time.monotonic() - started, 1),
    )


def report(loaded: Loaded) -> str:
    """Return the result as text."""
    signed = " (signature verified)" if loaded.signed else ""
    lines = [f"bundle {loaded.bundle}{signed}: {loaded.files_new} files added to the store"]
    for image in loaded.images:
        engine = f", in the engine as {image.reference}" if image.reference else ""
        lines.append(f"{image.variant} ({image.platform}) {image.digest}{engine}")
    if not all(image.rebuildable for image in loaded.images):
        changed = " with uncommitted changes" if loaded.origin.changed else ""
        lines.append(
            f"the bundle was made from commit {loaded.origin.commit or 'unknown'}{changed}, which differs from this"
            " repository: check it out to `build` and `publish` its images"
        )
    lines += [f"not included, supply it to rebuild: {line}" for line in loaded.not_included]
    return "\n".join(lines) + "\n"


def _verify_signature(archive: Archive, key: str) -> None:
    """Raise UntrustedError unless the owner of a public key signed the index, which names every blob by digest."""
    hint = "nothing was loaded; get the bundle again from its maker"
    if not archive.signature:
        raise UntrustedError(f"{archive.path}: not signed, but --key {key} requires a signature", hint=hint)
    try:
        signing.check_data(archive.index_bytes, archive.signature, key)
    except UntrustedError as error:
        raise UntrustedError(*(f"{archive.path}: {problem}" for problem in error.problems), hint=hint) from error


def _add_supplied(bundle: Bundle, folders: Mapping[str, str], store: Store) -> None:
    """Add the files that only their vendor may distribute to the store."""
    known = {name for image in bundle.images for name in image.supplied}
    for name in sorted(set(folders) - known):
        raise InputError(f"--context {name}: unknown context for this bundle", hint=nearest(name, known))
    for image in bundle.images:
        for name in sorted(set(folders) & set(image.supplied)):
            supplied.bring(name, image.supplied[name], Path(folders[name]), store)


def read_bundle(archive: Archive) -> Bundle:
    """Return bundle.json. Raises InputError if the archive is not a bundle."""
    entries = archive.index().get("manifests")
    listed = entries if isinstance(entries, list) else []
    own = next((item for item in listed if isinstance(item, dict) and item.get("artifactType") == BUNDLE), None)
    if own is None:
        raise InputError(f"{archive.path}: an OCI layout, but not a drydock bundle")
    with _valid_format(archive):
        return Bundle.model_validate(archive.json(archive.json(own["digest"])["config"]["digest"]))


@contextlib.contextmanager
def _valid_format(archive: Archive) -> Iterator[None]:
    """Raise InputError for missing or unexpected fields in a bundle's documents."""
    try:
        yield
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        problem = str(error).splitlines()[0]
        raise InputError(f"{archive.path}: unsupported bundle format: {problem}") from error


def _check_own_build(image: BundledImage) -> None:
    """Raise NotReproducibleError if this machine built another image from the same inputs."""
    layout = _kept(image)
    if layout.is_dir() and oci.read_digest(layout) != image.digest:
        raise NotReproducibleError(
            f"{image.variant} ({image.platform}): this machine built {oci.read_digest(layout)} from the same inputs,"
            f" the bundle contains {image.digest}",
            hint=f"`invoke verify --target {image.variant}` shows which one is reproducible; to use the bundle's image,"
            f" remove {layout}",
        )


def _kept(image: BundledImage) -> Path:
    return layouts_folder(image.variant, image.platform) / image.inputs_sha256


def engine_platforms(images: Iterable[BundledImage], machine: str = "") -> dict[str, str]:
    """Return for each variant the platform to load into the engine: this machine's if included, else the first."""
    own = ARCHITECTURES.get(machine or platform.machine(), "")
    found: dict[str, str] = {}
    for image in images:
        if image.platform == own or image.variant not in found:
            found[image.variant] = image.platform
    return found


def read_documents(archive: Archive, image: BundledImage) -> dict[str, bytes]:
    """Return the documents attached to an image, by file name; skip types that only earlier versions attached."""
    from drydock.attest import documents  # noqa: PLC0415 - slow to import, needed by few verbs

    found = {}
    for digest in image.documents:
        manifest = archive.json(digest)
        media_type = manifest["artifactType"]
        if media_type not in documents.RETIRED:
            found[documents.FILE_NAMES[media_type]] = archive.data(manifest["layers"][0]["digest"])
    return found


def _load_image(loading: _Loading, image: BundledImage, platforms: Mapping[str, str], root: Path) -> LoadedImage:
    """Load an image with its inputs, and into the engine if `platforms` names its platform."""
    with _valid_format(loading.archive):
        loading.inputs(image)
        if image.base:
            loading.base(image)
        loading.image(image)
    reference = ""
    if platforms.get(image.variant) == image.platform:
        reference = image_name(image.variant, image.digest)
        daemon.ensure()
        build.load_into_engine(_kept(image), reference)
    return LoadedImage(
        variant=image.variant,
        platform=image.platform,
        digest=image.digest,
        reference=reference,
        rebuildable=_same_inputs(image, root),
    )


def _same_inputs(image: BundledImage, root: Path) -> bool:
    try:
        job = prepare(image.variant, BuildOptions(platform=image.platform), root=root)
    except DrydockError:
        return False
    return job.inputs_sha256 == image.inputs_sha256


class _Loading:
    """The state of one load."""

    def __init__(self, archive: Archive, store: Store) -> None:
        self.archive, self.store = archive, store
        self.files_new = 0

    def check_free_space(self, bundle: Bundle) -> None:
        """Raise DiskFullError if the disk has too little space for the missing blobs."""
        with _valid_format(self.archive):
            sizes = dict(blob for image in bundle.images for blob in self._missing(image))
        check_free_space(cache_home(), sum(sizes.values()))

    def inputs(self, image: BundledImage) -> None:
        """Add the files from which the image is rebuilt to the store."""
        layers = self.archive.json(image.inputs)["layers"]
        with byte_progress() as bar:
            task = bar.add_task(f"{image.variant}: {len(layers)} files", total=sum(item["size"] for item in layers))
            for item in layers:
                self._input(item)
                bar.advance(task, item["size"])

    def base(self, image: BundledImage) -> None:
        """Write the layout of a base image."""
        final = fetch.image_folder(str(image.base), image.platform, self.store)
        if not oci.intact(final):
            with whole_folder(final, replace=True) as layout:
                self._write_layout(layout, str(image.base), image.platform)

    def image(self, image: BundledImage) -> None:
        """Keep the image as if this machine had built it, with the documents from the original build."""
        from drydock.attest import documents  # noqa: PLC0415 - slow to import, needed by few verbs

        final = _kept(image)
        with layouts_lock(image.variant, image.platform):
            if final.is_dir():
                return
            with whole_folder(final) as layout:
                self._write_layout(layout, image.digest, image.platform)
                (layout / documents.FOLDER).mkdir()
                for name, data in read_documents(self.archive, image).items():
                    (layout / documents.FOLDER / name).write_bytes(data)

    # --- missing content --------------------------------------------------------------------------------------------

    def _missing(self, image: BundledImage) -> Iterator[tuple[str, int]]:
        """Yield digest and size of each blob that this machine does not have."""
        for item in self.archive.json(image.inputs)["layers"]:
            if not self._has(item):
                yield item["digest"], self.archive.size(item["digest"])
        layouts = [] if _kept(image).is_dir() else [image.digest]
        if image.base and not fetch.image_folder(image.base, image.platform, self.store).is_dir():
            layouts.append(image.base)
        for digest in layouts:
            yield from ((blob, self.archive.size(blob)) for blob in self._reachable(digest, image.platform))

    def _has(self, item: dict[str, Any]) -> bool:
        if item["mediaType"] == SOURCE:
            return self._tree(item).is_dir()
        return self.store.has(item["digest"].removeprefix("sha256:"), item["size"])

    # --- single files -----------------------------------------------------------------------------------------------

    def _input(self, item: dict[str, Any]) -> None:
        if item["mediaType"] not in (*STORED, SOURCE):
            raise InputError(f"{self.archive.path}: unsupported input type {item['mediaType']}")
        if self._has(item):
            return
        if item["mediaType"] == SOURCE:
            self._unpack(item)
        else:
            sha256 = item["digest"].removeprefix("sha256:")
            self.store.add(self.archive.chunks(item["digest"]), sha256, item["annotations"][TITLE])
        self.files_new += 1

    def _tree(self, item: dict[str, Any]) -> Path:
        commit = str(item["annotations"][COMMIT])
        if not commit or not set(commit) <= set("0123456789abcdef"):
            raise InputError(f"{self.archive.path}: invalid commit {commit!r}")
        return self.store.home / "sources" / commit

    def _unpack(self, item: dict[str, Any]) -> None:
        stream = _Stream(self.archive.chunks(item["digest"]))
        with whole_folder(self._tree(item)) as folder:
            try:
                with open_tar(cast("IO[bytes]", stream), "r|") as tar:
                    tar.extractall(folder, members=members(tar), filter="data")
            except tarfile.TarError as error:
                raise FetchError(f"{self.archive.path}: {item['annotations'][TITLE]}: {error}") from error
            stream.drain()  # the digest is checked when the last byte is read

    def _write_layout(self, layout: Path, digest: str, platform: str) -> None:
        (layout / "blobs" / "sha256").mkdir(parents=True)
        for item in self._reachable(digest, platform):
            self.archive.size(item)  # raises InputError unless it is a digest, which is safe in a path
            with oci.blob(layout, item).open("wb") as file:
                file.writelines(self.archive.chunks(item))
                file.flush()
                os.fsync(file.fileno())
        manifest = self.archive.json(digest)
        described = {"mediaType": manifest["mediaType"], "digest": digest, "size": self.archive.size(digest)}
        write_index(layout, described)

    def _reachable(self, digest: str, platform: str) -> list[str]:
        """Return the digests of an image's blobs; of an index only the image for the given platform."""
        manifest = self.archive.json(digest)
        if "manifests" in manifest:
            system, _, architecture = platform.partition("/")
            inner = [
                item["digest"]
                for item in manifest["manifests"]
                if (item["platform"]["os"], item["platform"]["architecture"]) == (system, architecture)
            ]
            return [digest, *(blob for item in inner for blob in self._reachable(item, platform))]
        return [digest, manifest["config"]["digest"], *(item["digest"] for item in manifest["layers"])]


class _Stream:
    """A file object over chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._rest += chunk
        end = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:end], self._rest[end:]
        return data

    def drain(self) -> None:
        for _ in self._chunks:
            pass
