"""Source distributions that somebody made to break out of their folder."""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import strategies as st

from drydock.core.errors import FetchError
from drydock.inputs import source_tree
from tests.support.damage import repeat

NAMES = st.sampled_from(
    ["app", "app/a", "app/a/b", "app/a/b/c", "app/l", "app/l/x", "b", "../out/x", "{out}/x", "app/../../out/x", "..",
     ".", "", "/", "app/\udc80", "app/" + "n" * 300, "app//a/", "./app/a", "app/a/../../../out/x", "app/a\n"]
)  # fmt: skip
TARGETS = st.sampled_from(["", ".", "..", "a", "app/a", "app/l", "../out", "../../out", "{out}", "l", "../../../out/x"])
KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE,
     tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, tarfile.XHDTYPE, b"?"]
)  # fmt: skip
MEMBERS = st.lists(
    st.tuples(NAMES, KINDS, TARGETS, st.binary(max_size=40), st.integers(0, 0o7777)), min_size=1, max_size=6
)
HARM = st.one_of(st.none(), st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)))
Members = list[tuple[str, bytes, str, bytes, int]]


def archive(path: Path, members: Members, harm: tuple[int, int] | None, out: Path) -> None:
    """Write an archive, with one byte of its headers or files changed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, target, data, mode in members:
            info = tarfile.TarInfo(name.format(out=out))
            info.type, info.linkname, info.mode = kind, target.format(out=out), mode
            info.size = len(data) if kind in (tarfile.REGTYPE, tarfile.XHDTYPE) else 0
            tar.addfile(info, io.BytesIO(data))
    changed = bytearray(buffer.getvalue())
    if harm:
        changed[harm[0] % len(changed)] = harm[1]
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(changed)


@pytest.mark.fuzz
def test_no_source_distribution_leaves_its_folder(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "inner" / "folder"
    out.mkdir()
    (out / "x").write_text("kept")

    def attempt(members: Members, harm: tuple[int, int] | None) -> None:
        archive(tmp_path / "a.tar.gz", members, harm, out)
        folder.mkdir(parents=True)
        try:
            with contextlib.suppress(FetchError):
                source_tree.unpack_source(tmp_path / "a.tar.gz", folder, "app")
            source_tree.settle_modes_and_times(folder, "0123456789")
            assert [(path.name, path.read_text()) for path in out.iterdir()] == [("x", "kept")]
            assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "inner", "out"]
            assert [path.name for path in folder.parent.iterdir()] == ["folder"]
        finally:
            shutil.rmtree(folder)

    repeat(attempt, MEMBERS, HARM)


def test_an_honest_source_distribution_is_unpacked(tmp_path: Path) -> None:
    members: Members = [
        ("app/setup.py", tarfile.REGTYPE, "", b"1", 0o600),
        ("app/run", tarfile.REGTYPE, "", b"2", 0o4755),
        ("app/l", tarfile.SYMTYPE, "setup.py", b"", 0o777),
        ("app/h", tarfile.LNKTYPE, "app/run", b"", 0o755),
    ]
    archive(tmp_path / "a.tar.gz", members, None, tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    source_tree.unpack_source(tmp_path / "a.tar.gz", folder, "app")
    source_tree.settle_modes_and_times(folder, "0123456789")
    modes = {path.name: oct(path.lstat().st_mode & 0o7777) for path in folder.iterdir() if not path.is_symlink()}
    assert modes == {"setup.py": "0o644", "run": "0o755", "h": "0o755"}
    assert (folder / "l").read_bytes() == b"1"
    assert len({path.lstat().st_mtime for path in (folder, *folder.iterdir())}) == 1
