"""The archive itself: written whole or not at all, always the same bytes; read with every blob against its digest. IO.

A tar file of an OCI layout: oci-layout, index.json, blobs/sha256/…, sorted, with one owner, mode and time. A signature
of index.json, which leads to every byte, lies beside it: in it, it would have to sign itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from drydock.bundle.contents import Blob
from drydock.core.console import byte_progress
from drydock.core.errors import DiskFullError, FetchError, InputError
from drydock.core.files import disk_full, exclusive, temporary_prefix, whole_file
from drydock.core.paths import cache_home
from drydock.oci.reference import DIGEST
from drydock.registry.manifests import LARGEST

LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
INDEX = "index.json"
SIGNATURE = "index.json.sigstore.json"
BLOBS = "blobs/sha256/"
CHUNK = 1 << 20
SLACK = 1 << 20
"""Bytes for folders and a file system's own."""


def write(output: Path, index: bytes, blobs: Iterable[Blob], signature: bytes = b"") -> None:
    """Write an archive, replacing what was there when it is whole.

    Raises DiskFullError, and FetchError where the disk changed a blob's bytes meanwhile.
    """
    wanted = sorted({blob.digest: blob for blob in blobs}.values())
    total = sum(blob.size for blob in wanted)
    with _whole_file(output, total) as file, tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        signed = ((SIGNATURE, signature),) if signature else ()
        for name, data in (("oci-layout", LAYOUT), (INDEX, index), *signed):
            tar.addfile(_entry(name, len(data)), io.BytesIO(data))
        with byte_progress() as bar:
            task = bar.add_task(f"writing {len(wanted)} blobs", total=total)
            for blob in wanted:
                _add(tar, blob)
                bar.advance(task, blob.size)


def refuse_too_little_room(folder: Path, needed: int) -> None:
    """Raise DiskFullError, before anything is written, where a disk has not the room for it."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < needed + SLACK:
        raise DiskFullError(
            f"{folder}: no space left on the disk: {needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free",
            hint="free some space and run the same command again; nothing was written",
        )


@contextlib.contextmanager
def _whole_file(final: Path, size: int) -> Iterator[IO[bytes]]:
    """Yield a temporary file that becomes `final` when the block ends well; what killed runs left goes first."""
    with disk_full(final), exclusive(cache_home() / "bundle.lock"):
        final.parent.mkdir(parents=True, exist_ok=True)
        for left in final.parent.glob(f"{temporary_prefix(final)}*"):
            left.unlink()
        refuse_too_little_room(final.parent, size)
        with whole_file(final) as file:
            yield file


def _add(tar: tarfile.TarFile, blob: Blob) -> None:
    with io.BytesIO(blob.source) if isinstance(blob.source, bytes) else blob.source.open("rb") as file:
        read = _Hashing(file)
        try:
            tar.addfile(_entry(BLOBS + blob.digest.removeprefix("sha256:"), blob.size), read)
        except OSError as error:
            if str(error) != "unexpected end of data":
                raise
    if read.digest != blob.digest:
        raise FetchError(
            f"{blob.source!s}: is {read.digest}, expected {blob.digest}: the file was changed on the disk",
            hint="invoke fetch brings it again; build --no-cache makes an image again",
        )


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


class _Hashing:
    """A file that is hashed while it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


class Archive:
    """An archive that is read. Whatever it says, only blobs whose bytes are their digests' are given out."""

    def __init__(self, path: Path) -> None:
        """Find its blobs. Raises InputError for what is no such archive."""
        self.path = path
        try:
            with tarfile.open(path, "r:") as tar:
                members = tar.getmembers()
        except (OSError, tarfile.TarError) as error:
            raise self._refusal(str(error) or "it cannot be read") from error
        files = [(member.name.removeprefix("./"), member) for member in members if not member.isdir()]
        foreign = [name for name, member in files if not (member.isreg() and _known(name))]
        self._places = {name: (member.offset_data, member.size) for name, member in files}
        if foreign or len(self._places) < len(files):
            raise self._refusal(f"it holds {', '.join(foreign[:3]) or 'a name twice'}")

    @property
    def digest(self) -> str:
        """Return what names the whole bundle: the digest of its index, which leads to every byte by digest."""
        return f"sha256:{hashlib.sha256(self.indexed).hexdigest()}"

    @cached_property
    def indexed(self) -> bytes:
        """Return index.json's bytes; read once, so that what was checked is what is used."""
        return self._raw(INDEX)

    @property
    def signature(self) -> bytes:
        """Return the signature of index.json; nothing where there is none."""
        return self._raw(SIGNATURE) if SIGNATURE in self._places else b""

    def index(self) -> dict[str, Any]:
        """Return index.json."""
        return self._json(self.indexed, INDEX)

    def size(self, digest: str) -> int:
        """Return a blob's size. Raises InputError where it is not there."""
        return self._place(self._name(digest))[1]

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Yield a blob's bytes. Raises FetchError at the end where they are not its digest's."""
        hasher = hashlib.sha256()
        offset, left = self._place(self._name(digest))
        with self.path.open("rb") as file:
            file.seek(offset)
            while left and (chunk := file.read(min(left, CHUNK))):
                left -= len(chunk)
                hasher.update(chunk)
                yield chunk
        if f"sha256:{hasher.hexdigest()}" != digest:
            raise FetchError(
                f"{self.path}: the bytes of {digest} are sha256:{hasher.hexdigest()}: the archive was damaged",
                hint="copy it again; what was whole is in the store already",
            )

    def data(self, digest: str) -> bytes:
        """Return a small blob's bytes."""
        if self.size(digest) > LARGEST:
            raise self._refusal(f"{digest} is larger than a manifest may be")
        return b"".join(self.chunks(digest))

    def json(self, digest: str) -> dict[str, Any]:
        """Return what a small blob says."""
        return self._json(self.data(digest), digest)

    def _json(self, data: bytes, name: str) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except ValueError as error:
            raise self._refusal(f"{name} is no JSON") from error
        if not isinstance(value, dict):
            raise self._refusal(f"{name} is no JSON object")
        return value

    def _raw(self, name: str) -> bytes:
        offset, size = self._place(name)
        if size > LARGEST:
            raise self._refusal(f"{name} has {size} bytes")
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def _name(self, digest: str) -> str:
        if not DIGEST.fullmatch(digest):
            raise self._refusal(f"{digest!r} is no digest")
        return BLOBS + digest.removeprefix("sha256:")

    def _place(self, name: str) -> tuple[int, int]:
        if name not in self._places:
            raise self._refusal(f"{name} is missing")
        return self._places[name]

    def _refusal(self, reason: str) -> InputError:
        return InputError(f"{self.path}: not a whole bundle: {reason}", hint="invoke bundle makes one; copy it again")


def _known(name: str) -> bool:
    hexadecimal = name.removeprefix(BLOBS)
    return name in ("oci-layout", INDEX, SIGNATURE) or (
        name.startswith(BLOBS) and len(hexadecimal) == 64 and set(hexadecimal) <= set("0123456789abcdef")  # noqa: PLR2004 - of a sha256
    )


def index_of(entries: Mapping[str, dict[str, Any]]) -> bytes:
    """Return index.json: what is listed, sorted by digest."""
    content = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entries[digest] for digest in sorted(entries)],
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
