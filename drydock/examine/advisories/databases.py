"""Where advisories come from: OSV's service, or OSV records in files. IO.

The service compares versions itself. All of it comes from outside, so size and time are bounded before it is read.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import requests

from drydock.config.mirrors import rewrite_url
from drydock.core.errors import FetchError, InputError
from drydock.core.files import open_regular, read_bounded
from drydock.examine.advisories import osv
from drydock.examine.advisories.advisory_record import Advisory, PinnedPackage, clean_outside_text
from drydock.inputs import indexes
from drydock.inputs.downloads import UnansweredError, read_answer

SERVICE = "https://api.osv.dev/v1/query"
"""https://google.github.io/osv.dev/post-v1-query/."""
LARGEST_ANSWER, MOST_PAGES = 32 << 20, 100
"""Bytes of an answer, which is OSV's own limit, and answers about one version."""
LARGEST_RECORD = 8 << 20
"""Bytes of one record in a file."""
PATIENCE = 20.0
"""Seconds without a byte, and for all attempts of one question."""
WORKERS = 6

Answers = Mapping[PinnedPackage, "tuple[Advisory, ...] | str"]
"""Package → its advisories, or why there is no answer."""


class Database(Protocol):
    """A source of known vulnerabilities."""

    def ask(self, packages: Sequence[PinnedPackage]) -> Answers:
        """Return an answer for every package. Raises InputError for a database that cannot be read."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Return which databases have answered."""


class OsvService:
    """OSV's service, redirected by mirrors.yaml, with pip's certificates and proxies."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._access = indexes.make_index_access(indexes.read_indexes(env), env)
        self._url = rewrite_url(SERVICE, self._access.mirrors)
        self._unreachable = ""
        self.sources: tuple[str, ...] = ()

    def ask(self, packages: Sequence[PinnedPackage]) -> Answers:
        """Return an answer for every package."""
        self._unreachable = ""
        with ThreadPoolExecutor(WORKERS) as pool:
            answers = dict(zip(packages, pool.map(self._answer, packages), strict=True))
        self.sources = (self._url,) if any(not isinstance(x, str) for x in answers.values()) else ()
        return answers

    def _answer(self, package: PinnedPackage) -> tuple[Advisory, ...] | str:
        try:
            return tuple(
                osv.make_advisory(record, package) for record in self._records(package) if not record.withdrawn
            )
        except (FetchError, InputError) as error:
            return error.problems[0]

    def _records(self, package: PinnedPackage) -> Iterator[osv.OsvRecord]:
        """Yield what the service lists for a version. Raises FetchError or InputError."""
        version = str(osv.parse_comparable(package, package.version, package.name))
        query = {"package": {"name": package.name, "ecosystem": package.ecosystem}, "version": version}
        for _ in range(MOST_PAGES):
            page = osv.parse_osv(osv.OsvAnswer, self._post(query), package.name)
            yield from page.vulns
            if not page.next_page_token:
                return
            query["page_token"] = page.next_page_token
        raise FetchError(f"the service gave more than {MOST_PAGES} answers")

    def _post(self, query: object) -> bytes:
        """Return the answer to a query. Raises FetchError, at once if the service could not be reached before."""
        if self._unreachable:
            raise FetchError(self._unreachable)
        reached = self._access._replace(timeout=min(self._access.timeout, PATIENCE), patience=PATIENCE)
        host = urlsplit(self._url).hostname or ""
        try:
            answer = read_answer(self._url, "OSV", reached, LARGEST_ANSWER, query=query)
        except UnansweredError as error:
            self._unreachable = error.problems[0]  # so that this costs one wait
            raise
        if answer.status != requests.codes.ok:
            raise FetchError(f"{host} answered {answer.status}")
        return answer.body


class OsvFiles:
    """OSV records in files, archives such as OSV's all.zip, and folders of both. Uses no network."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self.sources: tuple[str, ...] = ()

    def ask(self, packages: Sequence[PinnedPackage]) -> Answers:
        """Return an answer for every package. Raises InputError for a database that cannot be read."""
        records: dict[tuple[str, str], dict[str, osv.OsvRecord]] = {package.key: {} for package in packages}
        days: dict[str, list[str]] = {package.ecosystem: [] for package in packages}
        for name, data in (entry for path in self._paths for entry in read_osv_documents(path)):
            record = osv.parse_osv(osv.OsvRecord, data, name)
            about = {osv.make_package_key(item.package) for item in record.affected if item.package}
            for ecosystem in days.keys() & {place for place, _ in about}:
                days[ecosystem].append(record.modified[:10])
            for key in records.keys() & about:
                records[key][record.id] = record
        self.sources = tuple(
            f"{len(entry)} OSV records of {ecosystem}, the newest of {clean_outside_text(max(entry)) or 'unknown date'}"
            for ecosystem, entry in days.items()
            if entry
        )
        return {
            package: _from_records(records[package.key].values(), package)
            if days[package.ecosystem]
            else f"the database has no OSV records of {package.ecosystem}"
            for package in packages
        }


def read_osv_documents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of each JSON document of a file, an archive, or a folder of both. Raises InputError."""
    try:
        if path.is_dir():
            for inner in sorted(path.rglob("*")):
                if inner.suffix in (".json", ".zip") and not inner.is_symlink():
                    yield from read_osv_documents(inner)
        elif path.suffix == ".zip":
            yield from _read_archive(path)
        else:
            yield str(path), read_bounded(path, LARGEST_RECORD)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        raise InputError(f"--database {path}: not a readable ZIP archive: {clean_outside_text(str(error))}") from error
    except OSError as error:
        hint = "it takes OSV records: JSON files, or an all.zip of OSV"
        raise InputError(f"--database {path}: {error.strerror}", hint=hint) from error


def _read_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the JSON files of a ZIP archive, such as OSV's all.zip; nothing is written to the disk."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        for item in archive.infolist():
            if item.filename.endswith(".json"):
                with archive.open(item) as content:
                    data = content.read(LARGEST_RECORD + 1)
                if len(data) > LARGEST_RECORD:
                    raise InputError(f"--database {path}: {clean_outside_text(item.filename)}: too large when unpacked")
                yield f"{path}: {item.filename}", data


def _from_records(records: Iterable[osv.OsvRecord], package: PinnedPackage) -> tuple[Advisory, ...] | str:
    """Return the advisories of a version, or why they are unknown."""
    try:
        return tuple(osv.make_advisory(record, package) for record in records if osv.is_affected(record, package))
    except InputError as error:
        return error.problems[0]
