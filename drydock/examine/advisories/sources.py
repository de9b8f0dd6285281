"""Where advisories come from: files on this machine, or the package index and Debian's security tracker. IO.

All of it comes from outside, so size, number and time are bounded before it is read.
"""

from __future__ import annotations

import io
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import requests

from drydock.config.access import Access, redact
from drydock.config.mirrors import rewritten
from drydock.core import http
from drydock.core.errors import DrydockError, FetchError, InputError
from drydock.core.files import read_bounded
from drydock.examine.advisories import formats
from drydock.examine.advisories.record import DEBIAN, PYPI, Advisory, PinnedPackage, shown
from drydock.inputs import indexes
from drydock.inputs.transfer import request_options

TRACKER = "https://security-tracker.debian.org/tracker/data/json"
LARGEST_FILE = 256 << 20
"""Bytes of a database file or of Debian's tracker, which had 70 MB in 2026."""
LARGEST_RECORD = 8 << 20
"""Bytes of one record in an archive, and of an index's answer."""
LARGEST_ARCHIVE = 2 << 30
"""Bytes of all records of an archive together, unpacked."""
MOST_FILES = 500_000
"""Records in an archive, and files in a folder."""
PATIENCE, MOST_TIME = 20.0, 300.0
"""Seconds without a byte, and for one answer, however slowly it comes."""
WORKERS = 6

Answers = Mapping[PinnedPackage, "tuple[Advisory, ...] | str"]
"""PinnedPackage → its advisories, or why there is no answer."""


class Database(Protocol):
    """A source of known vulnerabilities."""

    def ask(self, subjects: Sequence[PinnedPackage]) -> Answers:
        """Return an answer for every subject. Raises InputError for a database that cannot be read."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Return which databases have answered."""


# --- files ----------------------------------------------------------------------------------------------------------


class FileDatabase:
    """OSV records and Debian's tracker data, in files and folders that the user named."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self.sources: tuple[str, ...] = ()

    def ask(self, subjects: Sequence[PinnedPackage]) -> Answers:
        """Return an answer for every subject. Raises InputError for a database that cannot be read."""
        loaded = OfflineFiles({subject.name for subject in subjects if subject.kind == PYPI})
        for path in self._paths:
            for name, data in documents(path):
                loaded.add(name, formats.load(data, name))
        self.sources = loaded.sources()
        return {subject: _tried(loaded.answer, subject) for subject in subjects}


class OfflineFiles:
    """What files contained about the distributions that are asked about."""

    def __init__(self, wanted: set[str]) -> None:
        self._wanted = wanted
        self._records: dict[str, dict[str, formats.OsvRecord]] = {}
        self._tracker: dict[str, Any] = {}
        self._count, self._newest = 0, ""

    def add(self, name: str, data: Any) -> None:
        """Take in a document: one OSV record, a list of them, or the tracker's data. Raises InputError."""
        if isinstance(data, dict) and not isinstance(data.get("id"), str):
            self._add_tracker(name, data)
            return
        for item in data if isinstance(data, list) else [data]:
            self._add_record(formats.parse(formats.OsvRecord, item, name))

    def _add_record(self, record: formats.OsvRecord) -> None:
        found = set(formats.names(record))
        self._count += bool(found)
        self._newest = max(self._newest, record.modified[:10]) if found else self._newest
        for name in found & self._wanted:
            self._records.setdefault(name, {})[record.id] = record

    def _add_tracker(self, name: str, data: Mapping[str, Any]) -> None:
        wrong = next((key for key, value in data.items() if not isinstance(value, dict)), None)
        if wrong is not None or not data:
            raise InputError(f"{name}: expected OSV records or the data of Debian's security tracker")
        self._tracker.update(data)

    def answer(self, subject: PinnedPackage) -> tuple[Advisory, ...]:
        """Return a subject's advisories. Raises InputError if no file covers its kind."""
        if subject.kind == DEBIAN:
            if not self._tracker:
                raise InputError("the database has no data of Debian's security tracker")
            return formats.of_tracker(self._tracker.get(subject.name, {}), subject)
        if not self._count:
            raise InputError("the database has no OSV records of PyPI")
        records = self._records.get(subject.name, {}).values()
        return tuple(found for found in (formats.of_osv(record, subject) for record in records) if found)

    def sources(self) -> tuple[str, ...]:
        """Return what the files contain."""
        newest = "".join(mark for mark in self._newest if mark in "0123456789-")
        osv = (f"{self._count} OSV records of PyPI, the newest of {newest or 'unknown date'}",) if self._count else ()
        tracker = (f"Debian's security tracker, {len(self._tracker)} source packages",) if self._tracker else ()
        return (*osv, *tracker)


def documents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of each document of a file, an archive, or a folder of both. Raises InputError."""
    if path.is_dir():
        for number, inner in enumerate(sorted(path.rglob("*"))):
            if number >= MOST_FILES:
                raise InputError(f"{path}: more than {MOST_FILES} files")
            if inner.suffix in (".json", ".zip") and not inner.is_symlink():
                yield from documents(inner)
        return
    if path.suffix == ".zip":
        yield from _archived(path)
    else:
        yield str(path), _bytes_of(path)


def _bytes_of(path: Path) -> bytes:
    """Return a regular file's bytes. Raises InputError for another kind of file, and one that is too large."""
    try:
        return read_bounded(path, LARGEST_FILE)
    except OSError as error:
        raise InputError(f"--database {path}: {error.strerror}") from error


def _archived(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the JSON files of a ZIP archive, such as OSV's all.zip; nothing is written to the disk."""
    total = 0
    try:
        archive = zipfile.ZipFile(io.BytesIO(_bytes_of(path)))
        members = [item for item in archive.infolist() if item.filename.endswith(".json")]
        if len(members) > MOST_FILES:
            raise InputError(f"--database {path}: more than {MOST_FILES} records")
        for item in members:
            with archive.open(item) as content:
                data = content.read(LARGEST_RECORD + 1)
            total += len(data)
            if len(data) > LARGEST_RECORD or total > LARGEST_ARCHIVE:
                raise InputError(f"--database {path}: {shown(item.filename)}: too large when unpacked")
            yield f"{path}: {item.filename}", data
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        raise InputError(f"--database {path}: not a readable ZIP archive: {shown(str(error))}") from error


# --- network --------------------------------------------------------------------------------------------------------


class Fetched(NamedTuple):
    """An HTTP answer."""

    status: int
    data: bytes


class LiveDatabase:
    """The JSON API of this machine's package index, and Debian's security tracker, redirected by mirrors.yaml."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        configured = indexes.read_indexes(env)
        self._access = indexes.access(configured, env)
        self._index = None if configured.no_index else configured.main or indexes.PIPS_DEFAULT
        self._gone = ""
        self.sources: tuple[str, ...] = ()

    def ask(self, subjects: Sequence[PinnedPackage]) -> Answers:
        """Return an answer for every subject."""
        wheels = [subject for subject in subjects if subject.kind == PYPI]
        debs = [subject for subject in subjects if subject.kind == DEBIAN]
        self.sources, self._gone = (), ""
        with ThreadPoolExecutor(WORKERS) as pool:
            answers = dict(zip(wheels, pool.map(partial(_tried, self._index_says), wheels), strict=True))
        if any(not isinstance(answer, str) for answer in answers.values()):
            self.sources += (f"the package index {redact(self._index or '')}",)
        return {**answers, **(self._tracker_says(debs) if debs else {})}

    def _index_says(self, subject: PinnedPackage) -> tuple[Advisory, ...]:
        """Return what the main index lists for a version. Raises InputError or FetchError."""
        base = (self._index or "").rstrip("/")
        if not base.startswith(("https://", "http://")) or not base.endswith("/simple"):
            raise FetchError("the main package index has no JSON API at …/pypi/NAME/VERSION/json")
        version = formats.public(subject.version, subject.name)
        url = f"{base.removesuffix('/simple')}/pypi/{subject.name}/{version}/json"
        if self._gone:
            raise FetchError(self._gone)
        try:
            answer = get(url, self._access, LARGEST_RECORD)
        except FetchError as error:
            self._gone = str(error)  # so that an index that cannot be reached costs one wait
            raise
        if answer.status != requests.codes.ok:
            raise FetchError(f"the package index answered {answer.status}")
        return formats.of_index(
            formats.parse(formats.IndexAnswer, formats.load(answer.data, subject.name), subject.name)
        )

    def _tracker_says(self, subjects: Sequence[PinnedPackage]) -> Answers:
        try:
            answer = get(rewritten(TRACKER, self._access.mirrors), self._access, LARGEST_FILE)
            if answer.status != requests.codes.ok:
                raise FetchError(f"Debian's security tracker answered {answer.status}")
            loaded = OfflineFiles(set())
            loaded.add("Debian's security tracker", formats.load(answer.data, "Debian's security tracker"))
        except DrydockError as error:
            return dict.fromkeys(subjects, error.problems[0])
        self.sources += loaded.sources()
        return {subject: _tried(loaded.answer, subject) for subject in subjects}


def get(url: str, access: Access, most: int) -> Fetched:
    """Fetch a URL: no redirect, at most `most` bytes, at most MOST_TIME seconds. Raises FetchError."""
    host, started = urlsplit(url).hostname or "", time.monotonic()
    options = request_options(access._replace(timeout=min(access.timeout, PATIENCE)), url)
    try:
        with http.Session() as session, session.get(url, stream=True, allow_redirects=False, **options) as answer:
            return Fetched(answer.status_code, _body(http.pieces(answer), host, most, started))
    except (requests.RequestException, OSError) as error:
        raise FetchError(f"{host}: {type(error).__name__}") from error


def _body(chunks: Iterable[bytes], host: str, most: int, started: float) -> bytes:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > most:
            raise FetchError(f"{host}: an answer of more than {most} bytes")
        if time.monotonic() - started > MOST_TIME:
            raise FetchError(f"{host}: an answer that took more than {MOST_TIME:.0f} seconds")
    return bytes(data)


def _tried(ask: Callable[[PinnedPackage], tuple[Advisory, ...]], subject: PinnedPackage) -> tuple[Advisory, ...] | str:
    """Return the answer, or why there is none."""
    try:
        return ask(subject)
    except DrydockError as error:
        return error.problems[0]
