"""Sorted JSON, atomic writes, lock files, and bounded reads of what comes from outside."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, Any

import orjson

from drydock.core.console import log
from drydock.core.errors import FULL, UNWRITABLE, DrydockError, InputError, explain_os_error

DEEPEST = 64
"""Levels of nested JSON. The deepest document that drydock reads, an SPDX bill of materials, has seven."""
LONGEST_NUMBER = 20
"""Digits of an integer in JSON: 20 hold 64 bits. Python converts more digits in quadratic time."""
_LFS_POINTER = re.compile(
    rb"version https?://(?:git-lfs\.github\.com|hawser\.github\.com|git-media\.io)/(?:spec/)?v/?\d\r?\n"
    rb"(?:ext-[^\n]*\n)*oid sha256:[0-9a-f]{64}\r?\nsize \d+\s*$"
)
LARGEST_LFS_POINTER = 1023
"""Bytes of a pointer of Git LFS (the specification of git-lfs, "The Pointer")."""
LFS_HINT = "run `git lfs pull` in the clone that it comes from (apt-get install git-lfs)"
SLOWEST = 10_000
"""Bytes in a second: an older mobile network is ten times as fast."""
_TOO_DEEP = f"nested deeper than {DEEPEST} levels"


def format_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return sorted, indented JSON that ends with a newline, as it is printed and committed.

    `default` turns what is no JSON value into one.
    """
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(value, default, options).decode()


def format_compact_json(value: Any) -> str:
    """Return a JSON value in canonical form: sorted, without spaces. For programs and registries."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def compute_checksum(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def parse_any_json(data: str | bytes, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON that anyone may have written. Raises ValueError, also for deep nesting, long numbers and NaN."""
    try:
        value = json.loads(
            data, parse_int=_parse_integer, parse_constant=_no_constant, object_pairs_hook=object_pairs_hook
        )
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if _is_deeper(value, DEEPEST):
        raise ValueError(_TOO_DEEP)
    if (b"\\u" if isinstance(data, bytes) else "\\u") in data:  # type: ignore[operator]
        _check_escapes(value)
    return value


def refuse_duplicate_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object as a dict. Raises ValueError for a duplicate key: parsers disagree on which value counts."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError(f"duplicate key {Counter(key for key, _ in pairs).most_common(1)[0][0]!a}")
    return fields


def _check_escapes(value: Any) -> None:
    """Raise ValueError for half of a surrogate pair, which JSON can escape but no file or command can have."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object[error.start]!a} is half of a character") from error


def parse_json_object(data: str | bytes, what: str, error: type[DrydockError] = InputError) -> dict[str, Any]:
    """Parse a JSON object that anyone may have written; raise `error`, which names `what`, for anything else."""
    if not data.strip():
        raise error(f"{what}: expected a JSON object, found nothing")
    try:
        value = parse_any_json(data)
    except ValueError as problem:
        raise error(f"{what}: invalid JSON: {problem}") from problem
    if not isinstance(value, dict):
        type_name = "null" if value is None else type(value).__name__
        raise error(f"{what}: expected a JSON object, found {type_name}")
    return value


def _parse_integer(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} digits, expected at most {LONGEST_NUMBER}")
    return int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_deeper(value: Any, most: int) -> bool:
    """Tell whether JSON is nested deeper than `most` levels; without recursion, which has a limit itself."""
    level: list[Any] = [[value]]
    for _ in range(most + 1):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def measure_free_bytes(path: Path) -> int:
    """Return the bytes that are free on the disk of a path, which may not exist yet."""
    return shutil.disk_usage(next(place for place in (path, *path.parents) if place.exists())).free


def parse_byte_count(text: str) -> int | None:
    """Parse a size in bytes, as in a Content-Length header; None if it is not one."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < LONGEST_NUMBER else None


class Pace:
    """The speed of a transfer since it began. The timeout of a connection starts again with every byte."""

    def __init__(self, grace: float) -> None:
        self._grace, self._start = grace, time.monotonic()

    def is_too_slow(self, received: int) -> bool:
        """Tell whether it is slower than SLOWEST; the first `grace` seconds do not count."""
        return time.monotonic() - self._start > self._grace + received / SLOWEST


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading, without waiting for the other end of a pipe. Raises OSError, also for a device."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes. Raises OSError, also for a pipe, a device or a larger file."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 20} MiB", str(path))
    return data


def has_file(path: Path) -> bool:
    """Tell whether a file is there. Raises InputError for a folder, a pipe or a link to nothing, not meant as such."""
    if path.is_file():
        return True
    if os.path.lexists(path):
        kind = "a folder" if path.is_dir() else "a link to nothing" if path.is_symlink() else "a pipe or a device"
        raise InputError(f"{path}: found {kind}, expected a file", hint="remove or rename it")
    return False


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents, which only their owner can write to whatever the umask is."""
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            folder.mkdir(mode=0o755, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file for `open`; a new one is writable only for its owner, whatever the umask is."""
    return os.open(path, flags | os.O_CLOEXEC, 0o644)


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's content. Raises OSError, also for a pipe or a device."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_lfs_pointer(path: Path) -> bool:
    """Tell whether a file is a pointer of Git LFS, which stands for the file. Raises OSError.

    Pointers of older versions of Git LFS have another address of the specification.
    """
    with open_regular(path) as file:
        data = file.read(LARGEST_LFS_POINTER + 1)
    return len(data) <= LARGEST_LFS_POINTER and _LFS_POINTER.match(data) is not None


def join_below(folder: Path, name: str) -> Path:
    """Return the path of a name below a folder. Every name from a lock or an index becomes a path here.

    Raises InputError for an absolute name, the folder itself, and a name with `..`, which could lead out of the folder.
    """
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\0" in name:
        raise InputError(f"{name!r}: not the name of a file below {folder}", hint="make the lock again: `./inv lock`")
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


def write_below(folder: Path, files: Mapping[str, str]) -> tuple[Path, ...]:
    """Write files (path below the folder → content), and return those whose content changed.

    Raises InputError, before it writes the first, if a path cannot be a file's; also if a write fails; DiskFullError.
    """
    check_below(folder, files)
    with explain_unwritable(folder):
        return tuple(path for name, text in files.items() if write_atomically(path := join_below(folder, name), text))


def check_below(folder: Path, names: Iterable[str]) -> None:
    """Check that files below a folder can be written. Raises InputError with what is in the way."""
    with explain_unwritable(folder):
        problems = dict.fromkeys(problem for name in names if (problem := find_obstacle(join_below(folder, name))))
    if problems:
        raise InputError(*problems, hint="choose another folder, or move that away")


def find_obstacle(path: Path) -> str:
    """Return what is where a file and its folders must be; empty if nothing is in the way."""
    for folder in reversed(path.parents):
        if os.path.lexists(folder) and not folder.is_dir():
            return f"{folder}: found a file, expected a folder, or a name for one"
    return f"{path}: found a folder, expected a file" if path.is_dir() else ""


@contextlib.contextmanager
def explain_unwritable(folder: Path, option: str = "--output") -> Iterator[None]:
    """Turn every OSError of writes to a place that the user named by an option into an InputError or DiskFullError."""
    try:
        with disk_full(folder):
            yield
    except OSError as error:
        one_file = option != "--output"  # then error.filename is a temporary file, unknown to the user
        where, what = (folder, "file") if one_file else (error.filename or folder, "folder")
        raise InputError(f"{where}: {error.strerror}", hint=f"choose another {what} with {option}") from error


def write_together(texts: Mapping[Path, str]) -> list[Path]:
    """Write files that only fit together; return those whose content changed.

    All are on the disk under temporary names before the first is renamed. They are renamed in this order. Raises
    DiskFullError; then all stay.
    """
    texts = {path: text for path, text in texts.items() if not path.is_file() or path.read_bytes() != text.encode()}
    with contextlib.ExitStack() as files:
        for path, text in reversed(texts.items()):  # an ExitStack leaves first what it entered last
            files.enter_context(disk_full(path))
            file = files.enter_context(whole_file(path))
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    return [*texts]


@contextlib.contextmanager
def restore_files(paths: Iterable[Path], *, always: bool = False) -> Iterator[None]:
    """Put files back as they were if the block fails, or `always`."""
    before = {path: path.read_bytes() if path.is_file() else None for path in paths}
    try:
        yield
    except BaseException:
        always = True
        raise
    finally:
        if always:
            for path, data in before.items():
                if data is None:
                    path.unlink(missing_ok=True)
                elif not path.is_file() or path.read_bytes() != data:
                    write_atomically(path, data)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that is renamed to `path` if the block succeeds, and removed if it fails.

    Those of killed runs are removed first.
    """
    make_folder(path.parent)
    remove_temporary_files(path)
    handle, temporary = _open_temporary(path)
    try:
        with os.fdopen(handle, "wb") as file:  # its lock is held until it has the final name
            yield file
            file.flush()
            os.fsync(handle)
            os.fchmod(handle, 0o644)
            Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _open_temporary(path: Path) -> tuple[int, str]:
    """Create and lock a temporary file. On a file system without locks, no run removes those of others.

    Raises OSError that names the file itself, which is the one that the user knows.
    """
    while True:
        try:
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_make_temporary_prefix(path))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        if Path(temporary).exists():
            return handle, temporary
        os.close(handle)  # before it was locked, another run took it for that of a killed run


def remove_temporary_files(path: Path) -> None:
    """Remove the temporary files of killed runs: no process holds their locks."""
    for name in path.parent.glob(f"{glob.escape(_make_temporary_prefix(path))}*"):
        with contextlib.suppress(OSError), open_regular(name) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name.unlink()


def _make_temporary_prefix(path: Path) -> str:
    """Return the prefix of the temporary names under which a file is written, in the same folder.

    Only drydock's have it: a user's `.env.template` is no temporary file of `env`.
    """
    return f".{path.name}.drydock-"


@contextlib.contextmanager
def disk_full(path: Path) -> Iterator[None]:
    """Turn "no space left" and "not writable" below `path` into errors that say where and what to do.

    Raises DiskFullError or InputError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (*UNWRITABLE, *FULL):
            raise explain_os_error(error, path) from error
        raise


@contextlib.contextmanager
def hold_lock_file(path: Path) -> Iterator[None]:
    """Hold a lock file while the block runs. Logs a message if it has to wait for another run.

    The kernel releases the lock when the process dies. Raises InputError where the file cannot be made or locked.
    """
    try:
        make_folder(path.parent)
        handle = open(path, "a", opener=open_private)  # noqa: SIM115 - closed below; the block's own errors are its caller's
    except OSError as error:
        raise explain_os_error(error, path) from error
    with handle:
        take_lock(handle, path, f"waiting for another drydock run to release {path}")
        yield


def take_lock(file: IO[Any], path: Path, waiting: str) -> None:
    """Lock a file of drydock's cache; log `waiting` if another run holds the lock.

    Raises InputError where the file system has no locks: NFS without lockd (ENOLCK), Lustre without `-o flock`
    (ENOSYS), some FUSE file systems (EOPNOTSUPP).
    """
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        raise InputError(
            f"{path}: its file system cannot lock files (flock: {error.strerror})",
            hint="set DRYDOCK_CACHE to a folder on a local disk, or mount this one with locks (Lustre: -o flock)",
        ) from error


def check_cache_folder(folder: Path) -> None:
    """Check that files in a folder can be written, locked, and given modes. Raises InputError or DiskFullError."""
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".drydock-")
    except OSError as error:
        raise explain_os_error(OSError(error.errno, error.strerror, str(folder)), folder) from error
    try:
        with os.fdopen(handle, "wb") as file:
            take_lock(file, folder, "")
        set_mode(Path(name), 0o644)
    finally:
        Path(name).unlink()


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Hard-link a file; copy it where that is impossible.

    Examples are another disk (EXDEV), a file system without hard links, a file of another user
    (fs.protected_hardlinks), and a file with too many of them.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copy2(source, target)


def set_mode(path: Path, mode: int) -> None:
    """Set the mode of a file that is hashed into an image. Raises InputError where the file system keeps no modes.

    vfat and CIFS accept chmod and ignore it; the image would then have another digest.
    """
    if stat.S_IMODE(path.stat().st_mode) == mode:
        return  # it may be another user's, who alone can change it
    path.chmod(mode)
    actual = stat.S_IMODE(path.stat().st_mode)
    if actual != mode:
        raise InputError(
            f"{path}: its file system keeps no modes of files: found {actual:04o}, expected {mode:04o}",
            hint="set DRYDOCK_CACHE to a folder on a local Linux file system",
        )
