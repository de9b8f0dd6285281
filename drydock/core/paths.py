"""Where things lie: the repository, and the user's cache folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from drydock.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
"""The repository that this copy of drydock stands in."""


def cache_home(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of everything drydock keeps: DRYDOCK_CACHE, else drydock/ in the user's cache folder.

    Raises InputError for a path that BuildKit's options cannot express.
    """
    base = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(env.get("DRYDOCK_CACHE") or Path(base) / "drydock").absolute()
    if set("@,") & set(str(folder)):
        raise InputError(f"{folder}: the cache folder's path holds '@' or ','", hint="name another in DRYDOCK_CACHE")
    return folder
