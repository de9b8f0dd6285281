"""Push a model to a registry: an image whose root has the model's files, the same digest for the same files. IO.

Containers mount it; containerd mounts images and no other artefacts. Each file of weights is a layer, a tar without
compression that is made while it is sent: no second copy lies on the disk. The small files are the first layer.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from math import ceil
from pathlib import Path

from drydock.attest import model_bom
from drydock.core.console import as_lines, log
from drydock.core.errors import FetchError, InputError
from drydock.core.files import file_sha256, format_compact_json, format_json, read_bounded
from drydock.inputs import indexes
from drydock.inputs.models import MANIFEST, ModelFile, ModelFolder, as_pulled, files_of
from drydock.model.record import Record, dump_record
from drydock.oci import image_layout, strict
from drydock.oci.manifest import Manifest, to_manifest
from drydock.oci.reference import OCI, parse_reference
from drydock.publish.push import WORKERS
from drydock.publish.repository import Repository
from drydock.registry.blobs import FileContent
from entrypoints.core.weight_files import WEIGHTS

SMALL, SMALL_IN_ALL = 24 << 20, 64 << 20
"""Bytes of a small file, and of all of them. The largest published index of weights has 20 MB."""
PLATFORM = "linux/amd64"
"""What each model's image says to be for: engines do not compare it for an image that is named by digest."""
MOST_LAYERS = 100
"""Layers of weights; engines mount 127 at most. Of a model with more files, several are in one layer."""


class PushedModel(Record):
    """What `model push --json` prints."""

    model: str
    """What `run` takes as --model."""
    digest: str
    tag: str
    """Keeps the image from being collected as garbage; nothing is taken by it."""
    files: int
    layers: int
    size: int
    licence: str
    origin: str
    signed: bool
    bytes_sent: int


class TarContent:
    """A tar file that is made of files while it is read; it depends on their names and bytes alone."""

    def __init__(self, files: Mapping[str, FileContent | bytes]) -> None:
        self._parts: list[tuple[str, FileContent | bytes]] = []
        """Each with its name if it is a file's content."""
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = _get_content_size(content), 0o644
            head, rest = entry.tobuf(tarfile.PAX_FORMAT, "utf-8"), bytes(-entry.size % tarfile.BLOCKSIZE)
            self._parts += [("", head), (name, content), ("", rest)]
        self._parts.append(("", bytes(2 * tarfile.BLOCKSIZE)))
        self.size = sum(_get_content_size(part) for _, part in self._parts)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `end`."""
        at = 0
        for _, part in self._parts:
            first, last = max(start - at, 0), min(end - at, _get_content_size(part))
            if first < last:
                yield from [part[first:last]] if isinstance(part, bytes) else part.pieces(first, last)
            at += _get_content_size(part)

    def hashed(self) -> tuple[str, dict[str, str]]:
        """Read it all once; return its digest, and name → sha256 of each file."""
        whole, files = hashlib.sha256(), {}
        for name, part in self._parts:
            file_hash = hashlib.sha256()
            for piece in [part] if isinstance(part, bytes) else part.pieces(0, part.size):
                whole.update(piece)
                file_hash.update(piece)
            if name:
                files[name] = file_hash.hexdigest()
        return f"sha256:{whole.hexdigest()}", files


def _get_content_size(part: FileContent | bytes) -> int:
    return len(part) if isinstance(part, bytes) else part.size


def open_model_repository(name: str, *, insecure: bool) -> tuple[Repository, str]:
    """Return the repository that a name means, and its tag, which may be empty. Raises InputError, RegistryError."""
    where = parse_reference(name.removeprefix(OCI))
    if where.digest:
        raise InputError(f"{name}: found a digest, expected REGISTRY/NAME, with or without a tag")
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    return Repository(where._replace(tag=""), access, insecure=insecure), where.tag


def make_model_image(layers: Mapping[str, TarContent]) -> tuple[Manifest, bytes]:
    """Return the manifest of an image that engines mount, and its configuration."""
    config = _make_model_config(layers)
    config_digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
    manifest = to_manifest({
        "schemaVersion": 2,
        "mediaType": strict.MANIFEST,
        "config": {"mediaType": image_layout.CONFIG, "digest": config_digest, "size": len(config)},
        "layers": [
            {"mediaType": image_layout.LAYER, "digest": digest, "size": blob.size} for digest, blob in layers.items()
        ],
    })  # fmt: skip
    return manifest, config


def layers_of(folder: Path) -> tuple[ModelFolder, dict[str, TarContent]]:
    """Return the files of a model, and its layers by digest; the first one has the small files and their list.

    Raises InputError for a folder that is no model, FetchError for files that are not as they were pulled.
    """
    whole, names = files_of(folder)
    if whiteouts := [name for name in names if "/.wh." in f"/{name}"]:
        hint = "rename or remove the file: an engine would take it for the removal of another one"
        raise InputError(*(f"{folder / name}: not possible in an image" for name in whiteouts[:10]), hint=hint)
    contents = {name: FileContent(whole / name, (whole / name).stat().st_size) for name in names if name != MANIFEST}
    log(f"{folder}: hashing {len(contents)} files, {sum(map(_get_content_size, contents.values())) / 1e9:.2f} GB")
    small = _choose_first_layer(contents)
    large = [name for name in contents if name not in small]
    count = ceil(len(large) / MOST_LAYERS) or 1
    tars = [TarContent({name: contents[name] for name in large[at : at + count]}) for at in range(0, len(large), count)]
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            hashed = [*pool.map(TarContent.hashed, tars)]
        sha256 = {name: file_sha256(contents[name].path) for name in small}
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from error
    sha256 |= chain.from_iterable(file_hashes.items() for _, file_hashes in hashed)
    files = {name: ModelFile(sha256=sha256[name], size=content.size) for name, content in contents.items()}
    model_folder = _list_model_files(folder, names, files)
    first = TarContent(
        {**{name: contents[name] for name in small}, MANIFEST: format_json(dump_record(model_folder)).encode()}
    )
    digests = [first.hashed()[0], *(digest for digest, _ in hashed)]
    return model_folder, dict(zip(digests, [first, *tars], strict=True))


def _choose_first_layer(contents: Mapping[str, FileContent]) -> set[str]:
    """Return the names of the files in the first layer: no weights, and the smallest of the others."""
    names, room = set(), SMALL_IN_ALL
    for name, content in sorted(contents.items(), key=lambda item: (item[1].size, item[0])):
        if content.size <= min(SMALL, room) and not name.endswith(WEIGHTS):
            names.add(name)
            room -= content.size
    return names


def _list_model_files(folder: Path, names: Iterable[str], files: Mapping[str, ModelFile]) -> ModelFolder:
    """Return the list of files; that of `model pull` if there is one, of which no file may differ."""
    if MANIFEST not in names:
        return ModelFolder(schema_=1, hub="", name="", revision="", files=files)
    pulled_folder = as_pulled(folder, [*names])
    if wrong := sorted(name for name, file in pulled_folder.files.items() if files.get(name) != file):
        raise FetchError(
            *(f"{folder / name}: missing, or changed since it was downloaded" for name in wrong[:10]),
            hint=f"download the model again; or remove {MANIFEST}, so that the folder counts as it is",
        )
    return pulled_folder


def _make_model_config(layers: Iterable[str]) -> bytes:
    """Return the image's configuration."""
    rootfs = {"type": "layers", "diff_ids": [*layers]}
    system, architecture = PLATFORM.split("/")
    image = {"architecture": architecture, "os": system, "config": {}, "rootfs": rootfs}
    return format_compact_json(image).encode()


def read_model_card(folder: Path) -> str:
    """Return the text of README.md; empty if there is none."""
    try:
        return read_bounded(folder / "README.md", model_bom.CARD_AT_MOST).decode(errors="replace")
    except OSError:
        return ""


def format_pushed_model(pushed: PushedModel) -> str:
    """Return the result as text."""
    amounts = f"{pushed.size / 1e9:.2f} GB in {pushed.layers} layers, {pushed.bytes_sent / 1e6:.1f} MB sent"
    about = f"licence: {pushed.licence}; origin: {pushed.origin}"
    return as_lines([pushed.model, f"tag {pushed.tag}: {pushed.files} files, {amounts}", about])
