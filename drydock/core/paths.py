"""Paths of drydock's own files and of the user's own folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from drydock import DATA, INSTALLED
from drydock.core.errors import InputError
from drydock.core.ownership import find_writer

ROOT = DATA if INSTALLED else Path(__file__).resolve().parents[2]
"""drydock's own files: the repository that contains this copy of drydock, or an installed drydock's data."""
PROGRAM = "drydock" if INSTALLED else "./inv"
"""How one starts this drydock."""


CACHE = "DRYDOCK_CACHE"
"""Variable with drydock's cache folder."""


def cache_home(env: Mapping[str, str] = os.environ) -> Path:
    """Return drydock's cache folder: DRYDOCK_CACHE, else drydock/ in the user's cache folder.

    Raises InputError for a path that BuildKit's options cannot express, and for a folder that another user can write
    to: it holds programs, and what is read from it between a check and its use.
    """
    base = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(env.get(CACHE) or Path(base) / "drydock").absolute()
    if "@" in str(folder) or "," in str(folder):
        raise InputError(
            f"{folder}: the path of the cache folder contains '@' or ','", hint="set DRYDOCK_CACHE to another folder"
        )
    if writer := find_writer(folder):
        raise InputError(writer, hint=f"this is drydock's cache folder: set {CACHE} to one that only you can write to")
    return folder
