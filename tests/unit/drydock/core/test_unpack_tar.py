"""Archives are unpacked with the same refusals on every Python, also on Debian 12's, whose tarfile has no filter."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from drydock.core.tar import open_tar, unpack_tar
from tests.support import layouts

FILE, DIRECTORY, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
Entry = tuple[str, bytes, str, int]
"""Name, kind, where it links to, mode."""


def unpack(folder: Path, *entries: Entry) -> None:
    """Unpack an archive of these members; each file contains its own name."""
    data = layouts.tar(
        (name, name.encode() if kind == FILE else b"", {"type": kind, "linkname": target, "mode": mode})
        for name, kind, target, mode in entries
    )
    with open_tar(io.BytesIO(data), "r:") as archive:
        unpack_tar(archive, folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("/a", FILE, "", 0o644)], "not a path below"),
        ([("a/../../b", FILE, "", 0o644)], "not a path below"),
        ([("..", DIRECTORY, "", 0o755)], "not a path below"),
        ([("a", LINK, "/etc/passwd", 0o777)], "outside the archive's folder"),
        ([("a", LINK, "../b", 0o777)], "outside the archive's folder"),
        ([("a/b/l", LINK, "../..", 0o777), ("x", LINK, "a/b/l/../y", 0o777)], "outside the archive's folder"),
        ([("x", LINK, "l/../../y", 0o777), ("l", LINK, ".", 0o777)], "outside the archive's folder"),
        ([("l", LINK, ".", 0o777), ("l/a", FILE, "", 0o644)], "leads through a link"),
        ([("l", LINK, "a", 0o777), ("l", FILE, "", 0o644)], "leads through a link"),
        ([("a", HARD, "/etc/passwd", 0o644)], "not a path below"),
        ([("a", HARD, "../b", 0o644)], "not a path below"),
        ([("a", tarfile.CHRTYPE, "", 0o644)], "neither a file nor a folder nor a link"),
        ([("a", tarfile.BLKTYPE, "", 0o644)], "neither a file nor a folder nor a link"),
        ([("a", tarfile.FIFOTYPE, "", 0o644)], "neither a file nor a folder nor a link"),
    ],
)
def test_what_would_leave_the_folder_is_refused(tmp_path: Path, entries: list[Entry], message: str) -> None:
    with pytest.raises(tarfile.ReadError, match=message):
        unpack(tmp_path / "folder", *entries)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["folder"])


@pytest.mark.parametrize(
    "entries",
    [
        [("l", LINK, "a", 0o777), ("b", HARD, "l", 0o644)],
        [("d/a", FILE, "", 0o644), ("d", LINK, ".", 0o777)],
        [("d/a", FILE, "", 0o644), ("d", FILE, "", 0o644)],
        [("a", HARD, "b", 0o644)],
        [("a", LINK, "", 0o777)],
    ],
)
def test_what_contradicts_itself_is_an_error(tmp_path: Path, entries: list[Entry]) -> None:
    with pytest.raises(OSError, match=r"\[Errno"):
        unpack(tmp_path / "folder", *entries)


def test_everything_else_is_unpacked_without_setuid_bits_and_rights_of_others(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        unpack(
            tmp_path,
            ("./", DIRECTORY, "", 0o700),
            ("./closed/", DIRECTORY, "", 0o500),
            ("closed/inner/run", FILE, "", 0o6777),
            ("read-only", FILE, "", 0o444),
            ("read-only", FILE, "", 0o044),
            ("again", HARD, "closed/inner/run", 0o644),
            ("closed/up", LINK, "../closed/inner/../inner/run", 0o777),
            ("later", LINK, "made/later", 0o777),
            ("made/later", FILE, "", 0o600),
        )
    finally:
        os.umask(umask)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o7777 for path in tmp_path.rglob("*")}
    assert {name: mode for name, mode in modes.items() if mode == 0o755}.keys() == {
        "closed/inner/run",
        "again",
        "closed/up",
    }
    assert {name: mode for name, mode in modes.items() if mode == 0o644}.keys() == {"read-only", "later", "made/later"}
    assert all(mode & 0o700 == 0o700 for name, mode in modes.items() if (tmp_path / name).is_dir())
    assert (tmp_path / "closed" / "up").read_text() == "closed/inner/run"
    assert (tmp_path / "later").read_text() == "made/later"
