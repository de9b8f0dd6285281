"""Downloads files into the store: several at once, resumed where they broke off, checked before they count. IO."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from io import BufferedRandom
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests

from drydock.config.access import RETRIED, Access, redact
from drydock.config.mirrors import rewritten
from drydock.core.console import byte_progress
from drydock.core.errors import FetchError, GoneError
from drydock.inputs.store import Store

CHUNK = 1 << 16
"""Bytes read at once; what of a chunk came before a cut is lost."""
WORKERS = 6
ATTEMPTS = 5
"""Attempts in a row that bring no byte; one that brings some starts the count again."""


class Wanted(NamedTuple):
    """A pinned file and where it may be had, in order of trial."""

    name: str
    sha256: str
    size: int | None
    urls: tuple[str, ...]


class RetryableTransfer(Exception):  # noqa: N818  (a signal to try again, not an error that people see)
    """The transfer broke off in a way that another attempt may mend."""


class Transfer(NamedTuple):
    """What all downloads of one run share."""

    store: Store
    access: Access
    session: requests.Session
    advance: Callable[[int], None]
    stopped: threading.Event


def download(store: Store, wanted: Sequence[Wanted], access: Access) -> None:
    """Fetch what the store lacks; raise one FetchError that names every file that cannot be had.

    Raises DiskFullError at once. What did arrive is kept.
    """
    missing = tuple({w.sha256: w for w in wanted if not store.has(w.sha256, w.size)}.values())
    if not missing:
        return
    known = sum(w.size or 0 for w in missing)
    with byte_progress() as bar, requests.Session() as session:
        task = bar.add_task(f"fetching {len(missing)} files", total=known or None)
        transfer = Transfer(store, access, session, lambda count: bar.advance(task, count), threading.Event())
        problems = _all(transfer, missing)
    if problems:
        kind = GoneError if all(isinstance(problem, GoneError) for problem in problems) else FetchError
        raise kind(*(line for problem in problems for line in problem.problems))


def ask_sizes(files: Sequence[tuple[str, str]], access: Access) -> dict[str, int]:
    """Ask servers for the sizes of files (key and URL), several at once; one that does not tell is left out."""
    with ThreadPoolExecutor(WORKERS) as pool:
        sizes = pool.map(lambda file: _ask_size(file[1], access), files)
        return {key: size for (key, _), size in zip(files, sizes, strict=True) if size is not None}


def _ask_size(original: str, access: Access) -> int | None:
    url = rewritten(original, access.mirrors)
    if urlsplit(url).scheme == "file":
        path = Path(url2pathname(urlsplit(url).path))
        return path.stat().st_size if path.is_file() else None
    try:
        with requests.Session() as session:
            response = session.head(url, allow_redirects=True, **_reaching(access, url))
    except requests.RequestException:
        return None  # the file is fetched then, and says what is wrong with the server
    size = response.headers.get("Content-Length", "")
    plain = response.ok and "Content-Encoding" not in response.headers and size.isdigit()
    return int(size) if plain else None


def _all(transfer: Transfer, missing: Sequence[Wanted]) -> list[FetchError]:
    """Run the downloads; Ctrl-C and a full disk stop them all at their next chunk."""
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(_one, transfer, wanted) for wanted in missing]
        try:
            return _problems(futures)
        except BaseException:
            transfer.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _problems(futures: Sequence[Future[list[FetchError]]]) -> list[FetchError]:
    """Return what went wrong with single files; raise at once what concerns them all, such as a full disk."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()
    return [problem for future in futures for problem in future.result()]


def _one(transfer: Transfer, wanted: Wanted) -> list[FetchError]:
    """Try each URL until the file is in the store; return why none did, or nothing."""
    problems: list[FetchError] = []
    with transfer.store.receiving(wanted.sha256, wanted.size) as file:
        if file is None:
            return []
        for url in (rewritten(url, transfer.access.mirrors) for url in wanted.urls):
            try:
                _from_url(transfer, wanted, url, file)
            except FetchError as error:
                problems.append(error)
            else:
                return []
    return problems or [GoneError(f"{wanted.name}: nothing serves it")]


def _from_url(transfer: Transfer, wanted: Wanted, url: str, file: BufferedRandom) -> None:
    resumed = file.seek(0, 2) > 0
    _with_retries(transfer, wanted, url, file)
    try:
        transfer.store.keep(file, wanted.sha256, f"{wanted.name} from {redact(url)}")
    except FetchError:
        if not resumed:
            raise
        # What lay there may have come from another server's different file: once more, from nothing.
        _with_retries(transfer, wanted, url, file)
        transfer.store.keep(file, wanted.sha256, f"{wanted.name} from {redact(url)}")


def _with_retries(transfer: Transfer, wanted: Wanted, url: str, file: BufferedRandom) -> None:
    failures, have = 0, file.seek(0, 2)
    while True:
        try:
            return _receive(transfer, wanted, url, file)
        except RetryableTransfer as cut:
            now = file.seek(0, 2)
            failures = 1 if now > have else failures + 1
            have = now
            if failures >= ATTEMPTS:
                raise FetchError(f"{wanted.name} from {redact(url)}: {cut}") from cut
        if transfer.stopped.wait(transfer.access.pause * 2 ** (failures - 1)):
            raise FetchError(f"{wanted.name}: stopped")


def _receive(transfer: Transfer, wanted: Wanted, url: str, file: BufferedRandom) -> None:
    """Append what the file lacks; raise Cut if another attempt makes sense, FetchError if not."""
    have = file.seek(0, 2)
    if wanted.size is not None and have == wanted.size:
        return
    if wanted.size is not None and have > wanted.size:
        have = file.truncate(0)
    for chunk in _chunks(transfer, wanted, url, file, have):
        if transfer.stopped.is_set():
            raise FetchError(f"{wanted.name}: stopped")
        file.write(chunk)
        transfer.advance(len(chunk))
        if wanted.size is not None and file.tell() > wanted.size:
            file.truncate(0)
            raise FetchError(f"{wanted.name} from {redact(url)}: longer than the {wanted.size} bytes expected")
    if wanted.size is not None and file.tell() < wanted.size:
        raise RetryableTransfer(f"ended after {file.tell()} of {wanted.size} bytes")


def _chunks(transfer: Transfer, wanted: Wanted, url: str, file: BufferedRandom, have: int) -> Iterator[bytes]:
    if urlsplit(url).scheme == "file":
        return _local(wanted, url, file)
    return _http(transfer, wanted, url, file, have)


def _local(wanted: Wanted, url: str, file: BufferedRandom) -> Iterator[bytes]:
    path = Path(url2pathname(urlsplit(url).path))
    file.truncate(0)
    try:
        with path.open("rb") as source:
            yield from iter(lambda: source.read(CHUNK), b"")
    except FileNotFoundError as error:
        raise GoneError(f"{wanted.name}: {path}: no such file") from error


def _http(transfer: Transfer, wanted: Wanted, url: str, file: BufferedRandom, have: int) -> Iterator[bytes]:
    """Yield the rest of the file; where the server sends all of it again, forget what there was."""
    try:
        with _get(transfer, url, have) as response:
            _judge(response, wanted, url, file)
            yield from response.iter_content(CHUNK)
    except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
        raise RetryableTransfer(_reason(error)) from error
    except requests.RequestException as error:
        raise FetchError(f"{wanted.name} from {redact(url)}: {_reason(error)}") from error


def _get(transfer: Transfer, url: str, have: int) -> requests.Response:
    # identity: a server that compresses on the way would break both ranges and lengths.
    ranged = {"Range": f"bytes={have}-"} if have else {}
    options = _reaching(transfer.access, url)
    return transfer.session.get(url, stream=True, **{**options, "headers": {**options["headers"], **ranged}})


def _reaching(access: Access, url: str) -> dict[str, Any]:
    """Return how a server is reached, as requests takes it."""
    host = urlsplit(url).hostname or ""
    return {
        "headers": {"Accept-Encoding": "identity"},
        "timeout": access.timeout,
        "verify": False if host in access.insecure_hosts else access.certificates,
        "cert": access.client_certificate,
        "proxies": dict(access.proxies),
        "auth": access.credentials.get(host),
    }


def _judge(response: requests.Response, wanted: Wanted, url: str, file: BufferedRandom) -> None:
    have = file.seek(0, 2)
    if response.status_code == requests.codes.requested_range_not_satisfiable:
        file.truncate(0)
        raise RetryableTransfer("the server has less of it than was fetched before")
    if response.status_code in RETRIED:
        raise RetryableTransfer(f"the server answered {response.status_code} {response.reason}")
    if not response.ok:
        absent = response.status_code in {requests.codes.not_found, requests.codes.gone}
        raise (GoneError if absent else FetchError)(
            f"{wanted.name} from {redact(url)}: the server answered {response.status_code}"
        )
    resumes = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    if have and not (response.status_code == requests.codes.partial_content and resumes):
        file.truncate(0)


def _reason(error: Exception) -> str:
    """Say what went wrong without the URL, which may hold credentials."""
    cause = error.__cause__ or error.__context__ or error
    return f"{type(error).__name__} ({type(cause).__name__})"
