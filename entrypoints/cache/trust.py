"""Tells which other user could have written what a start is about to use. IO: it reads owners and modes only.

Whoever writes compiled code, or a folder above it, decides what this server executes. Trusted are this user and root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

SHARED = "DRYDOCK_CACHE_SHARED"
"""1: everyone who can write to the volume is trusted, and this start's files are writable for their group."""
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_EVERY_BIT = 0o7777


def is_shared(env: Mapping[str, str]) -> bool:
    """Tell whether the volume's owner trusts everyone who can write to it."""
    return env.get(SHARED) == "1"


def choose_umask(env: Mapping[str, str]) -> int:
    """Return the umask for files in the cache: other users cannot write them, unless the volume is shared."""
    return 0o007 if is_shared(env) else 0o027


def protect_folder(folder: str) -> None:
    """Set the sticky bit of this user's own folder, so that others who can write to it cannot rename what is in it."""
    try:
        status = os.stat(folder)
        if status.st_uid == os.getuid() and status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX:
            os.chmod(folder, stat.S_IMODE(status.st_mode) | stat.S_ISVTX)
    except OSError:  # absent, or on a read-only volume: it is judged as it is
        return


def find_other_owner(volume: str) -> str:
    """Return who else owns the volume's folder; empty for no one, also if it does not exist.

    Its mode does not count: only as a member of its group, 0 or the fsGroup of Kubernetes, can a container write to a
    volume of root. What others put into the place of a folder here is theirs, which the next start sees.
    """
    return _judge_folder(os.path.realpath(volume), _EVERY_BIT)


def find_replacer(folder: str) -> str:
    """Return who else could replace what is in a folder; empty for no one, also if it does not exist.

    A folder with the sticky bit lets others add files, but not rename or remove those of this user.
    """
    return _judge_folder(folder, stat.S_ISVTX)


def _judge_folder(folder: str, protected: int) -> str:
    try:
        return _describe_writer(folder, os.lstat(folder), protected)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"


def find_writer(path: str) -> str:
    """Return who else could have written a file, or anything in a folder; empty for no one, also if it does not exist.

    Another owner is named before a mode. A link must not lead out of the folder; its target there is judged itself.
    """
    first = ""
    try:
        for who in _list_writers(path):
            if who.startswith("uid "):
                return who
            first = first or who
    except OSError as error:
        return f"{error.filename or path} cannot be read: {error.strerror}"
    return first


def _list_writers(path: str) -> Iterator[str]:
    """Yield who else could have written each file and folder; do not enter folders of others. Raises OSError."""
    top, pending = os.path.realpath(path), [path]
    while pending:
        candidate = pending.pop()
        try:
            status = os.lstat(candidate)
        except FileNotFoundError:  # never there, or removed in the meantime
            continue
        if stat.S_ISLNK(status.st_mode) and not os.path.realpath(candidate).startswith(f"{top}/"):
            yield f"{candidate} is a link that leads elsewhere"
        if who := _describe_writer(candidate, status):
            yield who
        if stat.S_ISDIR(status.st_mode) and not who.startswith("uid "):
            pending += sorted((f"{candidate}/{name}" for name in os.listdir(candidate)), reverse=True)


def _describe_writer(path: str, status: os.stat_result, protected: int = 0) -> str:
    """Return who else can write to a file or folder; a mode with a bit of `protected` is safe."""
    if status.st_uid not in (os.getuid(), 0):
        return f"uid {status.st_uid} owns {path}"
    if stat.S_ISLNK(status.st_mode) or not status.st_mode & _OTHERS or status.st_mode & protected:
        return ""
    users = "every user" if status.st_mode & stat.S_IWOTH else f"group {status.st_gid}"
    return f"{users} can write to {path}, of uid {status.st_uid}"
