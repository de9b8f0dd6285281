from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.bundle import archive
from drydock.bundle.archive import Archive, index_of, write
from drydock.bundle.contents import Blob, blob
from drydock.bundle.inputs import pack
from drydock.core.errors import DiskFullError, FetchError, InputError
from drydock.model.locked import LockedSource
from tests.support.small_disk import small_disk

BLOBS = [blob(b"one"), blob(b"two" * 1000)]
INDEX = index_of({})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "a.tar", INDEX, BLOBS)
    return tmp_path / "a.tar"


def test_the_same_blobs_are_the_same_bytes_in_any_order(file: Path, tmp_path: Path) -> None:
    write(tmp_path / "b.tar", INDEX, [*reversed(BLOBS), BLOBS[0]])
    assert (tmp_path / "b.tar").read_bytes() == file.read_bytes()


def test_what_was_written_is_read(file: Path) -> None:
    found = Archive(file)
    assert found.digest == f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
    assert [found.data(item.digest) for item in BLOBS] == [item.source for item in BLOBS]


def test_one_that_was_unpacked_and_packed_by_others_is_read_too(file: Path, tmp_path: Path) -> None:
    with tarfile.open(file) as tar:
        tar.extractall(tmp_path / "layout", filter="data")
    with tarfile.open(tmp_path / "again.tar", "w") as tar:
        tar.add(tmp_path / "layout", ".")
    assert Archive(tmp_path / "again.tar").data(BLOBS[0].digest) == b"one"


def test_a_changed_byte_is_named(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data.replace(b"twotwo", b"twoTwo", 1))
    with pytest.raises(FetchError, match=rf"the bytes of {BLOBS[1].digest} are .* damaged"):
        list(Archive(file).chunks(BLOBS[1].digest))


@pytest.mark.parametrize("keep", [0, 100, 512, 1536, 4000])
def test_half_an_archive_is_no_archive(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises((InputError, FetchError), match=r"not a whole bundle|damaged"):
        [Archive(file).data(item.digest) for item in BLOBS]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "blobs/sha256/../../outside", "blobs/sha256/short", "a"])
def test_foreign_names_are_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(InputError, match="not a whole bundle: it holds"):
        Archive(tmp_path / "a.tar")


def test_links_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        entry = tarfile.TarInfo("index.json")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    with pytest.raises(InputError, match="not a whole bundle"):
        Archive(tmp_path / "a.tar")


@pytest.mark.parametrize("digest", ["sha256:../../outside", "", "sha256:" + "A" * 64, "md5:" + "a" * 64])
def test_what_is_no_digest_names_no_file(file: Path, digest: str) -> None:
    with pytest.raises(InputError, match="is no digest"):
        Archive(file).size(digest)


def test_a_file_that_the_disk_changed_makes_no_archive(tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(b"changed")
    wrong = Blob(BLOBS[0].digest, 7, tmp_path / "wheel")
    with pytest.raises(FetchError, match="the file was changed on the disk"):
        write(tmp_path / "a.tar", INDEX, [wrong])
    assert [path.name for path in tmp_path.glob("*a.tar*")] == []


def test_a_file_that_the_disk_cut_short_makes_no_archive(tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(b"o")
    with pytest.raises(FetchError, match="the file was changed on the disk"):
        write(tmp_path / "a.tar", INDEX, [Blob(BLOBS[0].digest, 3, tmp_path / "wheel")])


def test_what_a_killed_run_left_goes_and_the_old_archive_stays_until_the_new_one_is_whole(
    file: Path, tmp_path: Path
) -> None:
    (tmp_path / ".a.tar.killed").write_bytes(b"half")
    old = file.read_bytes()
    with pytest.raises(FileNotFoundError):
        write(file, INDEX, [Blob(BLOBS[0].digest, 3, tmp_path / "absent")])
    assert file.read_bytes() == old
    assert [path.name for path in tmp_path.glob("*a.tar*")] == ["a.tar"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "2m") as folder:
        yield folder


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(disk: Path) -> None:
    with pytest.raises(DiskFullError, match="4 MB are needed, 2 MB are free"):
        write(disk / "a.tar", INDEX, [blob(bytes(4_000_000))])
    assert list(disk.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_is_said_and_nothing_stays(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "refuse_too_little_room", lambda *_: None)
    with pytest.raises(DiskFullError, match="no space left"):
        write(disk / "a.tar", INDEX, [blob(bytes(4_000_000))])
    assert list(disk.iterdir()) == []


def tree(folder: Path) -> Path:
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "module.py").write_text("A = 1\n")
    (folder / "configure").write_text("#!/bin/sh\n")
    (folder / "configure").chmod(0o755)
    (folder / "link").symlink_to("package/module.py")
    return folder


def test_a_source_tree_is_packed_the_same_each_time(tmp_path: Path) -> None:
    source = LockedSource(name="a", commit="a" * 40, source="tests")
    first = pack(source, tree(tmp_path / "one"), tmp_path)
    second = pack(source, tree(tmp_path / "two"), tmp_path)
    assert first.digest == second.digest
    with tarfile.open(second.source) as tar:  # type: ignore[arg-type] - packed ones are files
        modes = {member.name: oct(member.mode) for member in tar}
    assert modes == {"configure": "0o755", "link": "0o755", "package": "0o755", "package/module.py": "0o644"}


def test_a_source_tree_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tree(tmp_path / "one") / "out").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match=r"out: .*such a source tree cannot be bundled"):
        pack(LockedSource(name="a", commit="a" * 40, source="tests"), tmp_path / "one", tmp_path)
