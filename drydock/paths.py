"""Where things lie: the repository, and the user's cache folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository that this copy of drydock stands in."""


def cache_home(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of everything drydock keeps: DRYDOCK_CACHE, else drydock/ in the user's cache folder."""
    if env.get("DRYDOCK_CACHE"):
        return Path(env["DRYDOCK_CACHE"])
    base = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "drydock"
