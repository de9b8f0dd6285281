"""Where the cache folder lies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.core.paths import cache_home


def test_drydock_cache_wins_over_xdg_cache_home_over_the_home_folder() -> None:
    assert cache_home({"DRYDOCK_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_home({"XDG_CACHE_HOME": "/b"}) == Path("/b/drydock")
    assert cache_home({}) == Path.home() / ".cache" / "drydock"


def test_a_relative_folder_becomes_absolute() -> None:
    assert cache_home({"DRYDOCK_CACHE": "here"}) == Path.cwd() / "here"


@pytest.mark.parametrize("folder", ["/home/user@corp/cache", "/a,b"])
def test_a_path_that_buildkit_cannot_express_is_refused(folder: str) -> None:
    with pytest.raises(InputError, match="contains '@' or ','"):
        cache_home({"DRYDOCK_CACHE": folder})


def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    assert cache_home({"DRYDOCK_CACHE": str(tmp_path)}) == tmp_path
    tmp_path.chmod(0o1777)
    with pytest.raises(InputError) as caught:
        cache_home({"DRYDOCK_CACHE": str(tmp_path)})
    assert str(caught.value).startswith(f"{tmp_path}: every user can write to it")
    assert "set DRYDOCK_CACHE" in caught.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users")
def test_a_cache_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, -1)
    with pytest.raises(InputError, match=f"{tmp_path}: uid 65534 owns it"):
        cache_home({"DRYDOCK_CACHE": str(tmp_path)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.touch(), "found a file"),
        (lambda path: path.symlink_to("nowhere"), "found a link to nowhere, which does not exist"),
        (lambda path: path.symlink_to(path), "found too many levels of symbolic links"),
    ],
)
def test_a_cache_that_is_no_folder_is_no_empty_cache(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path / "cache")

    with pytest.raises(InputError, match=message) as error:
        cache_home({"DRYDOCK_CACHE": str(tmp_path / "cache")})

    assert "set DRYDOCK_CACHE" in error.value.hint


def test_a_name_that_is_too_long_for_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file name too long"):
        cache_home({"DRYDOCK_CACHE": str(tmp_path / ("x" * 300))})


def test_a_missing_cache_and_a_link_to_a_folder_are_taken(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    for name in ("missing", "link"):
        assert cache_home({"DRYDOCK_CACHE": str(tmp_path / name)}) == tmp_path / name


@pytest.mark.parametrize("home", [None, ""])
def test_a_user_without_a_home_folder_is_told_to_set_one(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_242_424)
    env = {} if home is None else {"HOME": home}

    with pytest.raises(InputError, match="HOME is not set, and user 4242424 is not in /etc/passwd"):
        cache_home(env)
    assert cache_home({"DRYDOCK_CACHE": "/a", **env}) == Path("/a")
