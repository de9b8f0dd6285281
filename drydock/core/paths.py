"""Paths of drydock's own files and of the user's own folders."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path

from drydock import DATA, INSTALLED
from drydock.core.errors import InputError
from drydock.core.ownership import find_writer

ROOT = DATA if INSTALLED else Path(__file__).resolve().parents[2]
"""drydock's own files: the repository that contains this copy of drydock, or an installed drydock's data."""
PROGRAM = "drydock" if INSTALLED else "./inv"
"""How one starts this drydock."""
PROJECT_OPTION = "--project"
"""Option before the verb, with the folder of the project."""
PROJECT_VARIABLE = "DRYDOCK_PROJECT"
"""Variable with the same."""
CACHE = "DRYDOCK_CACHE"
"""Variable with drydock's cache folder."""


def find_home_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the user's home folder: HOME, else that of the user database.

    Raises InputError for a user without either, as `docker run --user 4242` makes one.
    """
    home = env.get("HOME") or os.environ.get("HOME")
    try:
        return Path(home or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError as error:
        raise InputError(
            f"HOME is not set, and user {os.getuid()} is not in /etc/passwd", hint="set HOME to a folder that you own"
        ) from error


def cache_home(env: Mapping[str, str] = os.environ) -> Path:
    """Return drydock's cache folder: DRYDOCK_CACHE, else drydock/ in the user's cache folder. It need not exist.

    Raises InputError for a path that BuildKit's options cannot express, for one that cannot be a folder, and for a
    folder that another user can write to: it holds programs, and what is read from it between a check and its use.
    """
    cache = env.get(CACHE) or Path(env.get("XDG_CACHE_HOME") or find_home_folder(env) / ".cache") / "drydock"
    folder = Path(cache).absolute()
    hint = f"set {CACHE} to a folder that you can write to"
    if "@" in str(folder) or "," in str(folder):
        raise InputError(f"{folder}: the path of the cache folder contains '@' or ','", hint=hint)
    if problem := _describe_obstacle(folder):
        raise InputError(f"{folder}: {problem}, expected drydock's cache folder", hint=hint)
    if writer := find_writer(folder):
        raise InputError(writer, hint=f"this is drydock's cache folder: set {CACHE} to one that only you can write to")
    return folder


def _describe_obstacle(path: Path) -> str:
    """Return what is found where a folder is expected; empty if there is one, or nothing.

    A link that leads nowhere is not an empty cache: `images --prune` would remove what other checkouts keep.
    """
    try:
        return "" if stat.S_ISDIR(path.stat().st_mode) else "found a file"
    except FileNotFoundError:
        return f"found a link to {path.readlink()}, which does not exist" if path.is_symlink() else ""
    except PermissionError:
        return ""  # whoever opens a file in it says which folder cannot be entered
    except OSError as error:
        return f"found {(error.strerror or str(error)).lower()}"
