"""A bundle → store, kept images, engine. IO.

Everything takes its final name only when its bytes were checked, so a load that was killed is run again and goes on,
and one that was done does nothing. What is here already stays as it is.
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
from drydock.bundle.archive import Archive, refuse_too_little_room
from drydock.bundle.contents import BUNDLE, COMMIT, SOURCE, STORED, TITLE, Bundle, BundledImage, BundleOrigin
from drydock.bundle.create import left_out
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
    """What the engine calls it; empty where it was not asked to hold it."""
    rebuildable: bool
    """Whether this repository has the very inputs that it was built from, so that `build` and `publish` find it."""


class Loaded(Record):
    """What `bundle.load --json` prints."""

    bundle: str
    origin: BundleOrigin
    images: tuple[LoadedImage, ...]
    files_new: int
    """Files of the store that were not there before."""
    not_included: tuple[str, ...]
    signed: bool
    """Whether --key asked who made it, and its owner did."""
    seconds: float


class LoadOptions(NamedTuple):
    """The options of a load."""

    engine: bool = False
    """Whether the engine gets the images of this machine's platform, too."""
    digest: str = ""
    """What the bundle's digest must be."""
    contexts: Mapping[str, str] = MappingProxyType({})
    """Folders of files that only their vendor may hand out, by the context they are for."""
    key: str = ""
    """Public key whose owner must have signed it."""


DEFAULTS = LoadOptions()


def load(path: Path, options: LoadOptions = DEFAULTS, *, root: Path = ROOT) -> Loaded:
    """Bring what a bundle holds into the store. Raises InputError, FetchError, UntrustedError, DiskFullError."""
    started = time.monotonic()
    archive = Archive(path)
    if options.digest and archive.digest != options.digest:
        raise UntrustedError(f"{path}: is {archive.digest}, expected {options.digest}", hint="it is another bundle")
    if options.key:
        _refuse_unsigned(archive, options.key)
    bundle = read_bundle(archive)
    for image in bundle.images:
        _refuse_another(image)
    loading = _Loading(archive, default_store())
    loading.refuse_too_little_room(bundle)
    _bring_supplied(bundle, options.contexts, loading.store)
    own = own_platforms(bundle.images)
    images = tuple(_image(loading, image, options, own, root) for image in bundle.images)
    return Loaded(
        bundle=archive.digest,
        origin=bundle.origin,
        images=images,
        files_new=loading.files_new,
        not_included=tuple(line for image in bundle.images for line in left_out(image, loading.store)),
        signed=bool(options.key),
        seconds=round(time.monotonic() - started, 1),
    )


def report(loaded: Loaded) -> str:
    """Return what people read."""
    signed = ", signed by the key's owner" if loaded.signed else ""
    lines = [f"bundle {loaded.bundle}{signed}: {loaded.files_new} files new in the store"]
    for image in loaded.images:
        engine = f", in the engine as {image.reference}" if image.reference else ""
        lines.append(f"{image.variant} ({image.platform}) {image.digest}{engine}")
    if not all(image.rebuildable for image in loaded.images):
        changed = " with changes that were not committed" if loaded.origin.changed else ""
        lines.append(
            f"this repository is not at the state that it was made from: commit {loaded.origin.commit or 'unknown'}"
            f"{changed}; `build` and `publish` find its images there"
        )
    lines += [f"not included, bring it yourself to rebuild: {line}" for line in loaded.not_included]
    return "\n".join(lines) + "\n"


def _refuse_unsigned(archive: Archive, key: str) -> None:
    """Raise UntrustedError unless the owner of a public key signed the index, and so every byte."""
    hint = "nothing was loaded; ask who made it, and get it anew"
    if not archive.signature:
        raise UntrustedError(f"{archive.path}: carries no signature, and --key {key} wants one", hint=hint)
    try:
        signing.check_data(archive.indexed, archive.signature, key)
    except UntrustedError as error:
        raise UntrustedError(*(f"{archive.path}: {problem}" for problem in error.problems), hint=hint) from error


def _bring_supplied(bundle: Bundle, folders: Mapping[str, str], store: Store) -> None:
    known = {name for image in bundle.images for name in image.supplied}
    for name in sorted(set(folders) - known):
        raise InputError(
            f"--context {name}: nothing in this bundle takes files of that name", hint=nearest(name, known)
        )
    for image in bundle.images:
        for name in sorted(set(folders) & set(image.supplied)):
            supplied.bring(name, image.supplied[name], Path(folders[name]), store)


def read_bundle(archive: Archive) -> Bundle:
    """Return what a bundle says of itself. Raises InputError."""
    entries = archive.index().get("manifests")
    listed = entries if isinstance(entries, list) else []
    own = next((item for item in listed if isinstance(item, dict) and item.get("artifactType") == BUNDLE), None)
    if own is None:
        raise InputError(f"{archive.path}: an OCI layout, and no bundle of drydock's")
    with _understood(archive):
        return Bundle.model_validate(archive.json(archive.json(own["digest"])["config"]["digest"]))


@contextlib.contextmanager
def _understood(archive: Archive) -> Iterator[None]:
    """Say of what a bundle's documents lack, or have too much, that it is no bundle this drydock reads."""
    try:
        yield
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        said = str(error).splitlines()[0]
        raise InputError(f"{archive.path}: not a bundle that this drydock reads: {said}") from error


def _refuse_another(image: BundledImage) -> None:
    """Raise NotReproducibleError where a build here, of the same inputs, gave something else."""
    layout = _kept(image)
    if layout.is_dir() and oci.read_digest(layout) != image.digest:
        raise NotReproducibleError(
            f"{image.variant} ({image.platform}): was built here as {oci.read_digest(layout)}, of the same inputs the"
            f" bundle has {image.digest}",
            hint=f"invoke verify --target {image.variant} says which comes out again; remove {layout} to take the"
            " bundle's",
        )


def _kept(image: BundledImage) -> Path:
    return layouts_folder(image.variant, image.platform) / image.inputs_sha256


def own_platforms(images: Iterable[BundledImage], machine: str = "") -> dict[str, str]:
    """Return for each variant the platform that the engine gets: the machine's own, else the first. Pure."""
    own = ARCHITECTURES.get(machine or platform.machine(), "")
    found: dict[str, str] = {}
    for image in images:
        if image.platform == own or image.variant not in found:
            found[image.variant] = image.platform
    return found


def _image(
    loading: _Loading, image: BundledImage, options: LoadOptions, own: Mapping[str, str], root: Path
) -> LoadedImage:
    with _understood(loading.archive):
        loading.inputs(image)
        if image.base:
            loading.base(image)
        loading.image(image)
    engines = options.engine and image.platform == own[image.variant]
    reference = image_name(image.variant, image.digest) if engines else ""
    if reference:
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
    """One load, and what it has done so far."""

    def __init__(self, archive: Archive, store: Store) -> None:
        self.archive, self.store = archive, store
        self.files_new = 0

    def refuse_too_little_room(self, bundle: Bundle) -> None:
        """Raise DiskFullError where the disk cannot hold what is missing."""
        with _understood(self.archive):
            needed = {size[0]: size[1] for image in bundle.images for size in self._missing(image)}
        refuse_too_little_room(cache_home(), sum(needed.values()))

    def inputs(self, image: BundledImage) -> None:
        """Bring what the image is rebuilt from."""
        layers = self.archive.json(image.inputs)["layers"]
        with byte_progress() as bar:
            task = bar.add_task(f"{image.variant}: {len(layers)} files", total=sum(item["size"] for item in layers))
            for item in layers:
                self._input(item)
                bar.advance(task, item["size"])

    def base(self, image: BundledImage) -> None:
        """Bring the base that is an image."""
        final = fetch.image_folder(str(image.base), image.platform, self.store)
        if not oci.intact(final):
            with whole_folder(final, replace=True) as layout:
                self._write_layout(layout, str(image.base), image.platform)

    def image(self, image: BundledImage) -> None:
        """Keep the image as if it had been built here, with what was said of it where it was built."""
        from drydock.attest import documents  # noqa: PLC0415 - half a second of import that no other verb needs

        final = _kept(image)
        with layouts_lock(image.variant, image.platform):
            if final.is_dir():
                return
            with whole_folder(final) as layout:
                self._write_layout(layout, image.digest, image.platform)
                (layout / documents.CARRIED).mkdir()
                for digest in image.documents:
                    manifest = self.archive.json(digest)
                    name = documents.KINDS[manifest["artifactType"]]
                    data = self.archive.data(manifest["layers"][0]["digest"])
                    (layout / documents.CARRIED / name).write_bytes(data)

    # --- what is missing --------------------------------------------------------------------------------------------

    def _missing(self, image: BundledImage) -> Iterator[tuple[str, int]]:
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

    # --- one thing --------------------------------------------------------------------------------------------------

    def _input(self, item: dict[str, Any]) -> None:
        if item["mediaType"] not in (*STORED, SOURCE):
            raise InputError(f"{self.archive.path}: holds {item['mediaType']}, which this drydock does not know")
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
            raise InputError(f"{self.archive.path}: {commit!r} is no commit")
        return self.store.home / "sources" / commit

    def _unpack(self, item: dict[str, Any]) -> None:
        stream = _Stream(self.archive.chunks(item["digest"]))
        with whole_folder(self._tree(item)) as folder:
            try:
                with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as tar:
                    tar.extractall(folder, filter="data")
            except tarfile.TarError as error:
                raise FetchError(f"{self.archive.path}: {item['annotations'][TITLE]}: {error}") from error
            stream.drain()  # its bytes count as the digest's only at their end

    def _write_layout(self, layout: Path, digest: str, platform: str) -> None:
        (layout / "blobs" / "sha256").mkdir(parents=True)
        for item in self._reachable(digest, platform):
            self.archive.size(item)  # or it is no digest, and no part of a path
            with oci.blob(layout, item).open("wb") as file:
                file.writelines(self.archive.chunks(item))
                file.flush()
                os.fsync(file.fileno())
        manifest = self.archive.json(digest)
        described = {"mediaType": manifest["mediaType"], "digest": digest, "size": self.archive.size(digest)}
        write_index(layout, described)

    def _reachable(self, digest: str, platform: str) -> list[str]:
        """Return the blobs of an image; of an index's images those that are there, which is the platform's."""
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
    """Chunks as a file that is read once."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._rest += chunk
        data, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return data

    def drain(self) -> None:
        for _ in self._chunks:
            pass
