"""Where the cache folder lies."""

from __future__ import annotations

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
