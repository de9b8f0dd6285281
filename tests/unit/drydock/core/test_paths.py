"""Where the cache folder lies."""

from __future__ import annotations

import os
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
