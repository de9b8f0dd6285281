from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.attest.components import Component, list_build_inputs
from drydock.bundle import archive
from drydock.bundle.archive import Archive, index_of, write_archive
from drydock.bundle.bundle_inputs import _list_source_blobs
from drydock.bundle.bundle_records import ARCHIVE, STORED, Blob, make_blob
from drydock.core.errors import DiskFullError, FetchError, InputError
from drydock.core.files import _make_temporary_prefix
from drydock.core.tar import unpack_tar
from drydock.examine.advisories.advisory_search import not_covered
from drydock.inputs.store import Store
from drydock.model.locked import LockedImageBase, LockedPlatform, LockedSource
from tests.support.hashes import sha256
from tests.support.small_disk import small_disk

BLOBS = [make_blob(b"one"), make_blob(b"two" * 1000)]
INDEX = index_of({})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_archive(tmp_path / "a.tar", INDEX, BLOBS)
    return tmp_path / "a.tar"


def test_the_archive_does_not_depend_on_the_order_of_blobs(file: Path, tmp_path: Path) -> None:
    write_archive(tmp_path / "b.tar", INDEX, [*reversed(BLOBS), BLOBS[0]])
    assert (tmp_path / "b.tar").read_bytes() == file.read_bytes()


def test_written_blobs_can_be_read(file: Path) -> None:
    bundle_file = Archive(file)
    assert bundle_file.digest == f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
    assert [bundle_file.data(item.digest) for item in BLOBS] == [item.source for item in BLOBS]


@pytest.mark.parametrize(("largest", "is_read"), [(3000, True), (2999, False)])
def test_a_small_blob_is_read_up_to_the_limit(
    largest: int, is_read: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Archive(file)
    monkeypatch.setattr(archive, "LARGEST", largest)
    if is_read:
        assert len(opened.data(BLOBS[1].digest)) == largest
        return
    with pytest.raises(InputError, match=f"has 3000 bytes, expected at most {largest}"):
        opened.data(BLOBS[1].digest)


@pytest.mark.parametrize(("spare", "is_read"), [(0, True), (-1, False)])
def test_an_index_is_read_up_to_the_limit(
    spare: int, is_read: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = len(INDEX) + spare
    monkeypatch.setattr(archive, "LARGEST", largest)
    if is_read:
        assert Archive(file).index_bytes == INDEX
        return
    with pytest.raises(InputError, match=f"expected at most {largest}"):
        assert Archive(file).index_bytes


def test_an_archive_packed_by_another_tool_can_be_read(file: Path, tmp_path: Path) -> None:
    with tarfile.open(file) as tar:
        unpack_tar(tar, tmp_path / "layout")
    with tarfile.open(tmp_path / "again.tar", "w") as tar:
        tar.add(tmp_path / "layout", ".")
    assert Archive(tmp_path / "again.tar").data(BLOBS[0].digest) == b"one"


def test_a_changed_byte_is_detected(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data.replace(b"twotwo", b"twoTwo", 1))
    with pytest.raises(FetchError, match=rf"damaged archive: {BLOBS[1].digest} contains"):
        list(Archive(file).chunks(BLOBS[1].digest))


@pytest.mark.parametrize("keep", [0, 100, 512, 1536, 4000])
def test_a_truncated_archive_is_an_error(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises((InputError, FetchError), match=r"invalid bundle|damaged"):
        [Archive(file).data(item.digest) for item in BLOBS]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "blobs/sha256/../../outside", "blobs/sha256/short", "a"])
def test_unexpected_names_are_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(InputError, match="invalid bundle: unexpected file"):
        Archive(tmp_path / "a.tar")


def test_links_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        entry = tarfile.TarInfo("index.json")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    with pytest.raises(InputError, match="invalid bundle: unexpected file"):
        Archive(tmp_path / "a.tar")


@pytest.mark.parametrize("digest", ["sha256:../../outside", "", "sha256:" + "A" * 64, "md5:" + "a" * 64])
def test_an_invalid_digest_is_an_error(file: Path, digest: str) -> None:
    with pytest.raises(InputError, match="invalid digest"):
        Archive(file).size(digest)


def test_a_changed_file_leaves_no_archive(tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(b"changed")
    wrong = Blob(BLOBS[0].digest, 7, tmp_path / "wheel")
    with pytest.raises(FetchError, match="the file was changed on the disk"):
        write_archive(tmp_path / "a.tar", INDEX, [wrong])
    assert [path.name for path in tmp_path.glob("*a.tar*")] == []


def test_a_truncated_file_leaves_no_archive(tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(b"o")
    with pytest.raises(FetchError, match="the file was changed on the disk"):
        write_archive(tmp_path / "a.tar", INDEX, [Blob(BLOBS[0].digest, 3, tmp_path / "wheel")])


def test_leftovers_are_removed_and_the_old_archive_stays_until_the_new_one_is_complete(
    file: Path, tmp_path: Path
) -> None:
    (tmp_path / f"{_make_temporary_prefix(file)}killed").write_bytes(b"half")
    old = file.read_bytes()
    with pytest.raises(FileNotFoundError):
        write_archive(file, INDEX, [Blob(BLOBS[0].digest, 3, tmp_path / "absent")])
    assert file.read_bytes() == old
    assert [path.name for path in tmp_path.glob("*a.tar*")] == ["a.tar"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "2m") as folder:
        yield folder


def test_a_disk_that_is_too_small_is_an_error_before_anything_is_written(disk: Path) -> None:
    with pytest.raises(DiskFullError, match="4 MB needed, 2 MB free"):
        write_archive(disk / "a.tar", INDEX, [make_blob(bytes(4_000_000))])
    assert list(disk.iterdir()) == []


def test_a_disk_that_fills_up_is_an_error_and_leaves_no_file(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "check_free_space", lambda *_: None)
    with pytest.raises(DiskFullError, match="no space left"):
        write_archive(disk / "a.tar", INDEX, [make_blob(bytes(4_000_000))])
    assert list(disk.iterdir()) == []


def test_a_hostile_bundle_is_refused(tmp_path: Path) -> None:
    endless = tarfile.TarInfo("index.json")
    endless.size, endless.type = 3 << 30, tarfile.XHDTYPE
    (tmp_path / "x.tar").write_bytes(endless.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    with pytest.raises(InputError, match="incomplete or invalid bundle"):
        Archive(tmp_path / "x.tar")
    write_archive(tmp_path / "deep.tar", b"[" * 100_000, [])
    with pytest.raises(InputError, match="nested deeper than 64 levels"):
        Archive(tmp_path / "deep.tar").index()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        Archive(tmp_path / "pipe")


SOURCE_URL = "https://example.org/releases/a-1.tar.bz2"
SOURCE_BASE = LockedImageBase(kind="image", reference="example.org/a:1", digest=None, verified=False, source="a test")


def test_a_release_archive_is_carried_and_listed(store: Store) -> None:
    key = sha256(b"BZh")
    store.add([b"BZh"], key, "a-1.tar.bz2")
    source = LockedSource(name="a", url=SOURCE_URL, sha256=key, source="a test")
    pins = LockedPlatform(base=SOURCE_BASE, layers={}, tools=(), sources=(source,))
    ((_, (blob, kind, annotations)),) = _list_source_blobs(pins, store)

    assert (blob.digest, blob.size, kind) == (f"sha256:{key}", 3, ARCHIVE)
    assert kind in STORED
    assert "sources/a-1.tar.bz2" in annotations.values()
    assert list_build_inputs(pins) == (Component("file", "a-1.tar.bz2", "", sha256=key, source=SOURCE_URL),)
    assert ("source a", "its release archive is no package of an index") in not_covered(pins)
