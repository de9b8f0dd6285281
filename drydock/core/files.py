"""Sorted JSON, atomic writes and lock files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

import orjson

from drydock.core.console import log
from drydock.core.errors import DiskFullError, InputError

UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
"""Error numbers of a write to a folder that is not writable."""


def dumps(value: Any) -> str:
    """Return sorted, indented JSON that ends with a newline, as it is printed and committed."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE).decode()


def compact(value: Any) -> str:
    """Return a JSON value in canonical form: sorted, without spaces. For programs and registries."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def checksum(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form."""
    return hashlib.sha256(compact(value).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def below(folder: Path, name: str) -> Path:
    """Return the path of a name below a folder. Every name from a lock or an index becomes a path here.

    Raises InputError for an absolute name, the folder itself, and a name with `..`, which could lead out of the folder.
    """
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\0" in name:
        raise InputError(f"{name!r}: not the name of a file below {folder}", hint="make the lock again: `invoke lock`")
    return folder / name


def write_atomically(path: Path, content: str | bytes) -> bool:
    """Write a file under a temporary name and rename it; return whether the content changed.

    Raises DiskFullError; the old file then stays as it was.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == data:
        return False
    with disk_full(path), whole_file(path) as file:
        file.write(data)
    return True


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that is renamed to `path` if the block succeeds, and removed if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=temporary_prefix(path))
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def temporary_prefix(path: Path) -> str:
    """Return the prefix of the temporary names under which a file is written, in the same folder."""
    return f".{path.name}."


@contextlib.contextmanager
def disk_full(path: Path) -> Iterator[None]:
    """Turn "no space left" and "not writable" below `path` into errors that say where and what to do.

    Raises DiskFullError or InputError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in UNWRITABLE:
            raise InputError(
                f"{error.filename or path}: {error.strerror}", hint="set DRYDOCK_CACHE to a writable folder"
            ) from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(
            f"{path}: no space left on the disk ({error.strerror})",
            hint="free some space and run the same command again: finished files are kept, half-written ones are not",
        ) from error


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file while the block runs. Logs a message if it has to wait for another run.

    The kernel releases the lock when the process dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for another drydock run to release {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
