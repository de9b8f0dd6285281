"""Keeps every fetched file once, under its sha256, and gives them out as folders of hard links. IO.

A file takes its final name only after its bytes were checked, so a name in the store is a promise. What a broken-off
download left lies in partial/ and is taken up again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path

from drydock.core.console import log
from drydock.core.errors import FetchError
from drydock.core.files import checksum, disk_full, file_sha256
from drydock.core.paths import cache_home

YOUNG = 60
"""Seconds in which a temporary folder may not have been locked yet by the run that made it."""


@dataclass(frozen=True)
class Store:
    """A folder of files named by their sha256, and the build contexts made of them."""

    home: Path

    def path(self, sha256: str) -> Path:
        """Return where the file with this hash lies, or would lie."""
        return self.home / "store" / "sha256" / sha256[:2] / sha256

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Tell whether the file is there; one of another size was damaged on the disk and counts as absent."""
        try:
            found = self.path(sha256).stat().st_size
        except FileNotFoundError:
            return False
        return size is None or found == size

    def verify(self, sha256: str) -> None:
        """Read the file again; drop it and raise FetchError if the disk changed its bytes."""
        with self.path(sha256).open("rb") as file:
            found = _sha256(file)
        if found != sha256:
            self.path(sha256).unlink()
            raise FetchError(
                f"{self.path(sha256)}: sha256 is {found}, expected {sha256}: the file was changed on the disk",
                hint="it was removed; run the same command again to fetch it",
            )

    def add(self, chunks: Iterable[bytes], sha256: str, name: str) -> Path:
        """Keep bytes that come from anywhere but a resumable download; raise FetchError if they are not the pinned."""
        with self.receiving(sha256) as file:
            if file is not None:
                file.truncate(0)
                for chunk in chunks:
                    file.write(chunk)
                self.keep(file, sha256, name)
        return self.path(sha256)

    @contextlib.contextmanager
    def receiving(self, sha256: str, size: int | None = None) -> Iterator[BufferedRandom | None]:
        """Open what there is of a file for appending, alone; yield None if it is whole by now.

        Raises DiskFullError.
        """
        partial = self.home / "store" / "partial" / sha256
        with disk_full(partial):
            partial.parent.mkdir(parents=True, exist_ok=True)
            with _locked(partial) as file:
                yield None if self.has(sha256, size) else file

    def keep(self, file: BufferedRandom, sha256: str, name: str) -> None:
        """Give a received file its final name; raise FetchError, keeping nothing, if its bytes are wrong."""
        file.flush()
        file.seek(0)
        found = _sha256(file)
        if found != sha256:
            file.truncate(0)
            raise FetchError(f"{name}: sha256 is {found}, expected {sha256}")
        os.fchmod(file.fileno(), 0o644)
        os.utime(file.fileno(), (mtime_of(sha256), mtime_of(sha256)))
        os.fsync(file.fileno())
        final = self.path(sha256)
        final.parent.mkdir(parents=True, exist_ok=True)
        Path(file.name).replace(final)

    def folder(
        self,
        files: Mapping[str, str],
        literals: Mapping[str, bytes] | None = None,
        executable: Collection[str] = (),
    ) -> Path:
        """Return a folder with the stored files (name → sha256) and some small literal ones, made once.

        Raises FetchError if the disk changed a stored file meanwhile.
        """
        texts = literals or {}
        hashes = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
        key = checksum({"files": {**files, **hashes}, "executable": sorted(executable)})
        final = self.home / "contexts" / key
        if _holds(final, {**files, **hashes}):
            return final
        with whole_folder(final, replace=True) as temporary:
            for name, sha256 in files.items():
                self.verify(sha256)
                place(self.path(sha256), temporary / name, executable=name in executable)
            for name, text in texts.items():
                _write(temporary / name, text, mtime_of(hashes[name]))
        return final


def _holds(folder: Path, hashes: Mapping[str, str]) -> bool:
    """Tell whether a folder has exactly these files with these hashes: a disk, or somebody, may have changed it."""
    if not folder.is_dir():
        return False
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return found.keys() == hashes.keys() and all(file_sha256(found[name]) == hashes[name] for name in hashes)


def default_store(env: Mapping[str, str] = os.environ) -> Store:
    """Return the user's store."""
    return Store(cache_home(env))


@contextlib.contextmanager
def whole_folder(final: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `final` when the block ends well, and vanishes otherwise.

    Where another run was faster, its folder stays, unless `replace`. Raises DiskFullError.
    """
    with disk_full(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final)
        temporary = Path(tempfile.mkdtemp(dir=final.parent, prefix=_prefix(final)))
        with _open_folder(temporary) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)  # shows _sweep that somebody is alive
            try:
                temporary.chmod(0o755)
                yield temporary
                if replace:
                    shutil.rmtree(final, ignore_errors=True)
                temporary.rename(final)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


def _sweep(final: Path) -> None:
    """Remove what runs that were killed left behind on their way to `final`."""
    for folder in final.parent.glob(f"{_prefix(final)}*"):
        with contextlib.suppress(OSError), _open_folder(folder) as handle:
            if time.time() - folder.stat().st_mtime < YOUNG:
                continue
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _prefix(final: Path) -> str:
    return f".{final.name[:32]}."


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(partial: Path) -> Iterator[BufferedRandom]:
    """Open a partial file under its own lock; the process that held it before may have renamed or removed it."""
    while True:
        with partial.open("a+b") as file:
            _take_lock(file)
            if not _still_named(file, partial):
                continue
            try:
                yield file
            finally:
                if _still_named(file, partial) and file.seek(0, os.SEEK_END) == 0:
                    partial.unlink()
            return


def _take_lock(file: BufferedRandom) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log(f"another drydock run is fetching {Path(file.name).name[:12]}…; waiting for it")
        fcntl.flock(file, fcntl.LOCK_EX)


def _still_named(file: BufferedRandom, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sha256(file: BufferedReader | BufferedRandom) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def mtime_of(sha256: str) -> int:
    """Derive a time from the content: BuildKit takes a file of the same name, size and time for the same file."""
    return int(sha256[:7], 16)


def place(source: Path, target: Path, *, executable: bool) -> None:
    """Link a stored file, or copy it where it must be executable or lies on another disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not executable:
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)
    target.chmod(0o755 if executable else 0o644)


def _write(target: Path, text: bytes, mtime: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text)
    target.chmod(0o644)
    os.utime(target, (mtime, mtime))
