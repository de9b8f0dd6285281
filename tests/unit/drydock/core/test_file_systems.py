"""File systems that lack what a local Linux disk has: locks, hard links, modes, space."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.core import files
from drydock.core.errors import DiskFullError, DrydockError, InputError, explain_os_error
from drydock.inputs.store import Store, whole_folder
from tests.support.hashes import sha256

WITHOUT_LOCKS = pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
"""Lustre without -o flock, NFS without lockd, some FUSE file systems."""


def failing(number: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@WITHOUT_LOCKS
def test_a_cache_without_locks_is_named_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(number))
    path = tmp_path / "engine" / "lock"

    expected = f"{path}: .*cannot lock files.*{os.strerror(number)}"
    with pytest.raises(InputError, match=expected) as lock, files.hold_lock_file(path):
        raise AssertionError
    with pytest.raises(InputError, match=str(tmp_path)) as download, Store(tmp_path).receiving("0" * 64):
        raise AssertionError
    with pytest.raises(InputError, match=str(tmp_path)) as examined:
        files.check_cache_folder(tmp_path)

    assert all("set DRYDOCK_CACHE" in error.value.hint for error in (lock, download, examined))
    assert [*tmp_path.iterdir()] == [tmp_path / "engine", tmp_path / "store"]


@WITHOUT_LOCKS
def test_an_output_folder_needs_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(number))

    with whole_folder(tmp_path / "model") as folder:
        (folder / "config.json").touch()

    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.touch(), "File exists"),
        (lambda path: path.symlink_to("nowhere"), "File exists"),
        (lambda path: path.symlink_to(path), "File exists"),
    ],
)
def test_a_lock_in_what_is_no_folder_names_it_and_the_variable(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(tmp_path / "cache")

    with (
        pytest.raises(InputError, match=f"cache: {reason}") as error,
        files.hold_lock_file(tmp_path / "cache" / "lock"),
    ):
        raise AssertionError

    assert "DRYDOCK_CACHE" in error.value.hint


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_a_file_that_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(os, "link", failing(number))

    files.link_or_copy(tmp_path / "a", tmp_path / "b")

    assert (tmp_path / "b").read_text() == "x"
    assert not (tmp_path / "b").samefile(tmp_path / "a")


def test_a_link_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")

    with pytest.raises(FileExistsError):
        files.link_or_copy(tmp_path / "a", tmp_path / "b")

    assert (tmp_path / "b").read_text() == "old"


def test_a_cache_that_keeps_no_modes_is_refused_before_a_context_has_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.add([b"x"], sha256(b"x"), "x")
    monkeypatch.setattr(Path, "chmod", lambda *_, **__: None)

    with pytest.raises(InputError, match="keeps no modes of files: found 0644, expected 0755") as error:
        store.folder({"x": sha256(b"x")}, executable=["x"])

    assert "DRYDOCK_CACHE" in error.value.hint


def test_a_file_of_another_user_with_the_right_mode_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch(0o644)
    (tmp_path / "a").chmod(0o644)
    monkeypatch.setattr(Path, "chmod", failing(errno.EPERM))

    files.set_mode(tmp_path / "a", 0o644)


@pytest.mark.parametrize(
    ("error", "kind", "message", "hint"),
    [
        (OSError(errno.ENOSPC, "full"), DiskFullError, "/d: no space left", "free some space"),
        (
            OSError(errno.EDQUOT, "over quota", "/d/f"),
            DiskFullError,
            "/d: no space left on the disk (over",
            "free some",
        ),
        (OSError(errno.EROFS, "read-only", "/c/f"), InputError, "/c/f: read-only", "DRYDOCK_CACHE"),
        (OSError(errno.EEXIST, "exists", "/c"), InputError, "/c: exists", "DRYDOCK_CACHE"),
        (OSError(errno.ESTALE, "stale"), InputError, "/d: stale", "network file system"),
        (OSError(errno.EMFILE, "too many"), InputError, "/d: too many", "ulimit -n"),
        (OSError(errno.ENOENT, "no such file", "/proc/x"), InputError, "/proc/x: no such file", "DRYDOCK_CACHE"),
        (OSError("of a library"), DrydockError, "of a library", ""),
    ],
)
def test_an_error_of_the_system_says_where_and_what_to_do(
    error: OSError, kind: type[DrydockError], message: str, hint: str
) -> None:
    explained = explain_os_error(error, "/d")

    assert type(explained) is kind
    assert explained.problems[0].startswith(message)
    assert hint in explained.hint


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (POINTER, True),
        (POINTER.replace("\n", "\r\n"), True),
        (POINTER.replace("git-lfs.github.com/spec/v1", "hawser.github.com/spec/v1"), True),
        (POINTER.replace("https://git-lfs.github.com/spec/v1", "http://git-media.io/v/2"), True),
        (POINTER.replace("oid", f"ext-0-case sha256:{'1' * 64}\noid"), True),
        ("", False),
        (f"The first lines of a pointer:\n{POINTER}", False),
        (f"{POINTER}{'x' * 1024}", False),
        ("version https://git-lfs.github.com/spec/v1\n", False),
    ],
)
def test_a_pointer_of_git_lfs_is_known_by_its_content(tmp_path: Path, content: str, expected: bool) -> None:
    (tmp_path / "k.bin").write_bytes(content.encode())

    assert files.is_lfs_pointer(tmp_path / "k.bin") is expected
