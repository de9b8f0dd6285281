"""Folders and files below the cache."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from entrypoints.core.errors import EntrypointError
from entrypoints.core.folders import (
    copy_folder,
    list_files,
    make_folder,
    make_private_folder,
    measure_folder,
    write_cache_file,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir(mode=0o700)
    make_folder(str(tmp_path / "hub"))
    assert mode(tmp_path / "hub") == 0o700


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("")
    with pytest.raises(EntrypointError, match=f"{tmp_path}/hub: expected a folder, found a file"):
        make_folder(str(tmp_path / "hub"))


def test_a_private_root_is_ours_alone(tmp_path: Path) -> None:
    make_private_folder(str(tmp_path / "drydock-0"))
    assert mode(tmp_path / "drydock-0") == 0o700


def test_a_private_root_that_others_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "drydock-0").mkdir()
    (tmp_path / "drydock-0").chmod(0o777)
    with pytest.raises(EntrypointError, match="that only uid"):
        make_private_folder(str(tmp_path / "drydock-0"))


def test_a_private_root_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "drydock-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EntrypointError, match="that only uid"):
        make_private_folder(str(tmp_path / "drydock-0"))


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    write_cache_file(str(tmp_path / "a" / "b"), "text")
    assert (tmp_path / "a" / "b").read_text() == "text"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_copies_hold_plain_files_with_their_times_and_no_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "kernel.so").write_bytes(b"x" * 100_000)
    (source / "deep" / "kernel.so").chmod(0o755)
    os.utime(source / "deep" / "kernel.so", (1, 2))
    (source / "out").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")

    assert copy_folder(str(source), str(tmp_path / "target")) == 100_000
    copied_file = tmp_path / "target" / "deep" / "kernel.so"
    assert copied_file.read_bytes() == b"x" * 100_000
    assert (copied_file.stat().st_mtime, mode(copied_file) & 0o122) == (2, 0o100)
    assert [name for name, _ in list_files(str(tmp_path / "target"))] == ["deep/kernel.so"]
    assert measure_folder(str(source))[0] == 1
