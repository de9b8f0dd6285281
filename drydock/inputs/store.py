"""The content-addressed store: each fetched file once, under its sha256, and folders of hard links to them. IO.

A file gets its final name only after its hash was checked. Interrupted downloads stay in partial/ and are resumed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path

from drydock.core.errors import FetchError
from drydock.core.files import (
    compute_checksum,
    disk_full,
    file_sha256,
    join_below,
    link_or_copy,
    make_folder,
    open_private,
    set_mode,
    take_lock,
)
from drydock.core.paths import cache_home

LOCK_DELAY = 60
"""Seconds: a temporary folder younger than this may not yet be locked by the run that created it."""


@dataclass(frozen=True)
class Store:
    """A folder of files named by their sha256, and of build contexts made from them."""

    home: Path

    def path(self, sha256: str) -> Path:
        """Return the path of the file with this hash; it need not exist."""
        return join_below(self.home / "store" / "sha256", f"{sha256[:2]}/{sha256}")

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Tell whether the store has the file; a damaged or changed one counts as missing.

        A file that was written after it was stored has another time; only then its hash is computed again.
        """
        path = self.path(sha256)
        try:
            status = path.lstat()
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(status.st_mode) or (size is not None and status.st_size != size):
            return False
        return status.st_mtime == mtime_of(sha256) or _verify_and_touch(path, sha256)

    def verify(self, sha256: str) -> None:
        """Check the file's hash again; if it changed on the disk, remove it and raise FetchError."""
        with self.path(sha256).open("rb") as file:
            actual = _hash_file(file)
        if actual != sha256:
            self.path(sha256).unlink()
            raise FetchError(
                f"{self.path(sha256)}: sha256 is {actual}, expected {sha256}: the file was changed on the disk",
                hint="the file was removed; run the same command to fetch it again",
            )

    def add(self, chunks: Iterable[bytes], sha256: str, name: str) -> Path:
        """Store bytes that are not a resumable download. Raises FetchError if they do not match the hash."""
        with self.receiving(sha256) as file:
            if file is not None:
                file.truncate(0)
                for chunk in chunks:
                    file.write(chunk)
                self.keep(file, sha256, name)
        return self.path(sha256)

    @contextlib.contextmanager
    def receiving(self, sha256: str, size: int | None = None) -> Iterator[BufferedRandom | None]:
        """Open and lock a partial file for appending; yield None if the store already has the complete file.

        Raises DiskFullError.
        """
        partial = join_below(self.home / "store" / "partial", sha256)
        with disk_full(partial):
            make_folder(partial.parent)
            with _open_locked(partial) as file:
                yield None if self.has(sha256, size) else file

    def keep(self, file: BufferedRandom, sha256: str, name: str) -> None:
        """Give a received file its final name. If its hash is wrong, empty it and raise FetchError."""
        file.flush()
        file.seek(0)
        actual = _hash_file(file)
        if actual != sha256:
            file.truncate(0)
            raise FetchError(f"{name}: sha256 is {actual}, expected {sha256}")
        os.fchmod(file.fileno(), 0o644)
        os.utime(file.fileno(), (mtime_of(sha256), mtime_of(sha256)))
        os.fsync(file.fileno())
        final = self.path(sha256)
        make_folder(final.parent)
        Path(file.name).replace(final)

    def folder(
        self,
        files: Mapping[str, str],
        literals: Mapping[str, bytes] | None = None,
        executable: Collection[str] = (),
    ) -> Path:
        """Return a folder of stored files (name → sha256) and of small files given as bytes; it is made once.

        Raises FetchError if a stored file was changed on the disk, InputError for a name that leads out of the folder.
        """
        texts = literals or {}
        for name in (*files, *texts):
            join_below(self.home, name)
        hashes = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
        key = compute_checksum({"files": {**files, **hashes}, "executable": sorted(executable)})
        final = self.home / "contexts" / key

        def is_whole(folder: Path) -> bool:
            return _has_exactly(folder, {**files, **hashes}, executable)

        if is_whole(final):
            return final
        with whole_folder(final, replace_unless=is_whole) as temporary:
            for name, sha256 in files.items():
                self.verify(sha256)
                place_file(self.path(sha256), temporary / name, executable=name in executable)
            for name, text in texts.items():
                _write_file(temporary / name, text, mtime_of(hashes[name]))
        return final


def _has_exactly(folder: Path, hashes: Mapping[str, str], executable: Collection[str]) -> bool:
    """Tell whether a folder has exactly these files (name → sha256), and no links."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        files = {
            str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_symlink() or path.is_file()
        }
        return files.keys() == hashes.keys() and all(
            not path.is_symlink()
            and bool(path.stat().st_mode & stat.S_IXUSR) == (name in executable)
            and file_sha256(path) == hashes[name]
            for name, path in files.items()
        )
    except FileNotFoundError:  # it was damaged, and another run replaces it at this moment
        return False


def _verify_and_touch(path: Path, sha256: str) -> bool:
    """Tell whether a file has its hash, and set its time again: a copy of a store may have lost the times."""
    if file_sha256(path) != sha256:
        return False
    with contextlib.suppress(OSError):  # a store that others own
        os.utime(path, (mtime_of(sha256), mtime_of(sha256)))
    return True


def default_store(env: Mapping[str, str] = os.environ) -> Store:
    """Return the user's store."""
    return Store(cache_home(env))


@contextlib.contextmanager
def whole_folder(
    final: Path, *, replace: bool = False, replace_unless: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `final` if the block succeeds, and removed otherwise.

    A folder `final` that is there at the end stays, unless `replace` is set: then a lock keeps other runs away. Without
    such a lock, `replace_unless` tells whether that folder is whole: another run has made it meanwhile, and may use it.
    Raises DiskFullError.
    """
    with disk_full(final):
        make_folder(final.parent)
        _remove_stale_folders(final)
        temporary = Path(tempfile.mkdtemp(dir=final.parent, prefix=_make_prefix(final)))
        with _open_folder(temporary) as handle:
            with contextlib.suppress(OSError):  # without locks, _sweep cannot take one either and removes nothing
                fcntl.flock(handle, fcntl.LOCK_EX)  # tells _sweep that this run is alive
            try:
                temporary.chmod(0o755)
                yield temporary
                if replace:
                    shutil.rmtree(final, ignore_errors=True)
                with _remove_broken_folder(final, replace_unless) if replace_unless else contextlib.nullcontext():
                    _rename_unless_made(temporary, final)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _remove_broken_folder(folder: Path, is_whole: Callable[[Path], bool]) -> Iterator[None]:
    """Remove a folder that is not whole; while the block runs, other runs that found the same folder wait."""
    with contextlib.ExitStack() as handles:
        with contextlib.suppress(OSError):  # it does not exist
            handle = handles.enter_context(_open_folder(folder))
            with contextlib.suppress(OSError):  # without locks, one of two runs that repair at once fails
                fcntl.flock(handle, fcntl.LOCK_EX)
            is_same = os.path.samestat(os.fstat(handle), folder.lstat())  # no other run has replaced it meanwhile
            if is_same and not is_whole(folder):
                shutil.rmtree(folder, ignore_errors=True)
        yield


def _rename_unless_made(temporary: Path, final: Path) -> None:
    """Rename a folder, unless another run was faster."""
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _remove_stale_folders(final: Path) -> None:
    """Remove the temporary folders of killed runs."""
    for folder in final.parent.glob(f"{_make_prefix(final)}*"):
        with contextlib.suppress(OSError), _open_folder(folder) as handle:
            if time.time() - folder.stat().st_mtime < LOCK_DELAY:
                continue
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _make_prefix(final: Path) -> str:
    return f".{final.name[:32]}."


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _open_locked(partial: Path) -> Iterator[BufferedRandom]:
    """Open and lock a partial file; try again if the previous holder of the lock renamed or removed it."""
    while True:
        with open(partial, "a+b", opener=open_private) as file:
            take_lock(file, partial, f"waiting for another drydock run to fetch {partial.name[:12]}…")
            if not _still_named(file, partial):
                continue
            try:
                yield file
            finally:
                if _still_named(file, partial) and file.seek(0, os.SEEK_END) == 0:
                    partial.unlink()
            return


def _still_named(file: BufferedRandom, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _hash_file(file: BufferedReader | BufferedRandom) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def mtime_of(sha256: str) -> int:
    """Derive a modification time from the content: BuildKit identifies a file by name, size and time."""
    return int(sha256[:7], 16)


def place_file(source: Path, target: Path, *, executable: bool) -> None:
    """Link a stored file; copy one that must be executable."""
    make_folder(target.parent)
    if executable:
        shutil.copy2(source, target)
    else:
        link_or_copy(source, target)
    set_mode(target, 0o755 if executable else 0o644)


def _write_file(target: Path, text: bytes, mtime: int) -> None:
    make_folder(target.parent)
    target.write_bytes(text)
    set_mode(target, 0o644)
    os.utime(target, (mtime, mtime))
