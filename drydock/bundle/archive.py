"""The archive file of a bundle: written atomically and reproducibly; each blob is checked against its digest. IO.

A tar file of an OCI layout: oci-layout, index.json, blobs/sha256/…, sorted, all with the same owner, mode and time. The
signature of index.json is a file of its own, since index.json cannot contain its own signature; index.json leads to
every other blob by digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from drydock.bundle.bundle_records import Blob
from drydock.core.console import byte_progress
from drydock.core.errors import DiskFullError, FetchError, InputError
from drydock.core.files import (
    disk_full,
    hold_lock_file,
    make_folder,
    measure_free_bytes,
    open_regular,
    parse_any_json,
    remove_temporary_files,
    whole_file,
)
from drydock.core.paths import cache_home
from drydock.core.tar import members, open_tar
from drydock.oci.reference import DIGEST
from drydock.registry.registry_client import LARGEST

LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
INDEX = "index.json"
SIGNATURE = "index.json.sigstore.json"
BLOBS = "blobs/sha256/"
BLOB_NAME = re.compile(rf"{BLOBS}[0-9a-f]{{64}}")
CHUNK = 1 << 20
LARGEST_BUNDLE = 4 << 40
"""Bytes of an archive: the images of every variant, with their inputs, are a tenth of it."""
SLACK = 1 << 20
"""Bytes of additional free space to require, for folders and the file system's metadata."""


def write_archive(output: Path, index: bytes, blobs: Iterable[Blob], signature: bytes = b"") -> None:
    """Write an archive; replace an existing file only once the new one is complete.

    Raises DiskFullError, and FetchError if a blob does not match its digest.
    """
    unique = sorted({blob.digest: blob for blob in blobs}.values())
    total = sum(blob.size for blob in unique)
    with _new_file(output, total) as file, tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        files = {"oci-layout": LAYOUT, INDEX: index}
        if signature:
            files[SIGNATURE] = signature
        for name, data in files.items():
            tar.addfile(_make_tar_entry(name, len(data)), io.BytesIO(data))
        with byte_progress() as bar:
            task = bar.add_task(f"writing {len(unique)} blobs", total=total)
            for blob in unique:
                _add_blob(tar, blob)
                bar.advance(task, blob.size)


def check_free_space(folder: Path, size: int) -> None:
    """Raise DiskFullError if a folder's disk has less than the needed bytes free."""
    free = measure_free_bytes(folder)
    if free < size + SLACK:
        raise DiskFullError(
            f"{folder}: no space left on the disk: {size / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free",
            hint="free some space and run the same command again; nothing was written",
        )


@contextlib.contextmanager
def _new_file(final: Path, size: int) -> Iterator[IO[bytes]]:
    """Yield a temporary file that becomes `final` if the block succeeds."""
    with disk_full(final), hold_lock_file(cache_home() / "bundle.lock"):
        make_folder(final.parent)
        remove_temporary_files(final)  # before the free space is counted
        check_free_space(final.parent, size)
        with whole_file(final) as file:
            yield file


def _add_blob(tar: tarfile.TarFile, blob: Blob) -> None:
    with io.BytesIO(blob.source) if isinstance(blob.source, bytes) else blob.source.open("rb") as file:
        hashing = _HashingReader(file)
        try:
            tar.addfile(_make_tar_entry(BLOBS + blob.digest.removeprefix("sha256:"), blob.size), hashing)
        except OSError as error:
            if str(error) != "unexpected end of data":  # a truncated file: reported below by its digest
                raise
    if hashing.digest != blob.digest:
        raise FetchError(
            f"{blob.source!s}: is {hashing.digest}, expected {blob.digest}: the file was changed on the disk",
            hint="run `./inv fetch` to download an input again, or `./inv build --no-cache` to rebuild an image",
        )


def _make_tar_entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


class _HashingReader:
    """A file object that hashes the bytes that are read."""

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
    """An archive to read. It returns only blobs that match their digests."""

    def __init__(self, path: Path) -> None:
        """Find the blobs. Raises InputError if the file is not such an archive."""
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}
        try:
            with open_regular(path) as file, open_tar(file, "r:") as tar:
                for member in members(tar, LARGEST_BUNDLE):
                    self._note(member)
        except (OSError, tarfile.TarError) as error:
            raise self._error(str(error) or "cannot be read") from error

    def _note(self, member: tarfile.TarInfo) -> None:
        """Remember where a file is. Raises InputError for a file that a bundle does not have."""
        name = member.name.removeprefix("./")
        if member.isdir():
            return
        if not member.isreg() or member.issparse() or not _is_expected(name):
            raise self._error(f"unexpected file {name[:200]!r}")
        if name in self._places:
            raise self._error("two files with the same name")
        self._places[name] = member.offset_data, member.size

    @property
    def digest(self) -> str:
        """Return the bundle's digest: that of index.json, which leads to every blob by digest."""
        return f"sha256:{hashlib.sha256(self.index_bytes).hexdigest()}"

    @cached_property
    def index_bytes(self) -> bytes:
        """Return index.json's bytes; read only once, so that the bytes that were verified are the bytes in use."""
        return self._raw(INDEX)

    @property
    def signature(self) -> bytes:
        """Return the signature of index.json; empty if there is none."""
        return self._raw(SIGNATURE) if SIGNATURE in self._places else b""

    def index(self) -> dict[str, Any]:
        """Return index.json."""
        return self._json(self.index_bytes, INDEX)

    def size(self, digest: str) -> int:
        """Return a blob's size in bytes. Raises InputError if it is missing."""
        return self._place(self._name(digest))[1]

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Yield a blob's bytes. Raises FetchError after the last chunk if they do not match the digest."""
        hasher = hashlib.sha256()
        offset, remaining = self._place(self._name(digest))
        with self.path.open("rb") as file:
            file.seek(offset)
            while remaining and (chunk := file.read(min(remaining, CHUNK))):
                remaining -= len(chunk)
                hasher.update(chunk)
                yield chunk
        if f"sha256:{hasher.hexdigest()}" != digest:
            raise FetchError(
                f"{self.path}: damaged archive: {digest} contains sha256:{hasher.hexdigest()}",
                hint="copy the archive again; undamaged files are already in the store",
            )

    def data(self, digest: str) -> bytes:
        """Return a small blob's bytes."""
        if self.size(digest) > LARGEST:
            raise self._error(f"{digest} has {self.size(digest)} bytes, expected at most {LARGEST}")
        return b"".join(self.chunks(digest))

    def json(self, digest: str) -> dict[str, Any]:
        """Return the JSON object in a small blob."""
        return self._json(self.data(digest), digest)

    def _json(self, data: bytes, name: str) -> dict[str, Any]:
        try:
            value = parse_any_json(data)
        except ValueError as error:
            raise self._error(f"{name}: invalid JSON: {error}") from error
        if not isinstance(value, dict):
            raise self._error(f"{name}: expected a JSON object")
        return value

    def _raw(self, name: str) -> bytes:
        offset, size = self._place(name)
        if size > LARGEST:
            raise self._error(f"{name} has {size} bytes, expected at most {LARGEST}")
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def _name(self, digest: str) -> str:
        if not DIGEST.fullmatch(digest):
            raise self._error(f"invalid digest {digest!r}")
        return BLOBS + digest.removeprefix("sha256:")

    def _place(self, name: str) -> tuple[int, int]:
        if name not in self._places:
            raise self._error(f"{name} is missing")
        return self._places[name]

    def _error(self, reason: str) -> InputError:
        return InputError(
            f"{self.path}: incomplete or invalid bundle: {reason}",
            hint="copy the file again; `./inv bundle create` creates bundles",
        )


def _is_expected(name: str) -> bool:
    return name in ("oci-layout", INDEX, SIGNATURE) or BLOB_NAME.fullmatch(name) is not None


def index_of(entries: Mapping[str, dict[str, Any]]) -> bytes:
    """Return index.json with the given entries, sorted by digest."""
    content = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entries[digest] for digest in sorted(entries)],
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
