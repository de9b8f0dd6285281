"""Downloads files into the store: in parallel, with resume, and with a check of each hash. Asks servers, too. IO.

Every request is made again after an error that may pass, and after the time that the server asks for (core/http.py).
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from io import BufferedRandom
from pathlib import Path
from types import MappingProxyType
from typing import Any, AnyStr, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import requests

from drydock.config.mirrors import rewrite_url
from drydock.config.server_access import Access, redact_url
from drydock.core import http
from drydock.core.console import log_detail, show_step
from drydock.core.errors import FetchError, GoneError
from drydock.core.files import SLOWEST, Pace, open_regular, parse_byte_count
from drydock.core.http import TransientRequestError
from drydock.core.network_settings import is_loopback
from drydock.inputs.store import Store

CHUNK = 1 << 16
"""Bytes read at once; an incomplete chunk is lost if the connection breaks."""
WORKERS = 6
ATTEMPTS = 5
"""Attempts in a row without a new byte before a download fails."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
LARGEST_FILE = 32 << 30
"""Bytes of a file whose size no index names. The largest wheel has a tenth of it."""


class Wanted(NamedTuple):
    """A pinned file, and the URLs to try in order."""

    name: str
    sha256: str
    size: int | None
    urls: tuple[str, ...]


class HttpAnswer(NamedTuple):
    """An answer that fits into memory. Of an error, only the status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class UnansweredError(FetchError):
    """A server gives no complete answer, or asks to come later, however often it is asked."""


class Transfer(NamedTuple):
    """State shared by all downloads of one run."""

    store: Store
    access: Access
    session: requests.Session
    advance: Callable[[int], None]
    stopped: threading.Event


def download_files(store: Store, files: Sequence[Wanted], access: Access) -> None:
    """Fetch the files that the store lacks; raise one FetchError that names every file that failed.

    Raises DiskFullError immediately. Completed files are kept.
    """
    missing = tuple({file.sha256: file for file in files if not store.has(file.sha256, file.size)}.values())
    if not missing:
        return
    total = sum(file.size or 0 for file in missing)
    with show_step("fetch", total or None) as progress, http.Session() as session:
        progress.note(f"{len(missing)} files")
        transfer = Transfer(store, access, session, progress.advance, threading.Event())
        problems = _download_all(transfer, missing)
    if problems:
        all_gone = all(isinstance(problem, GoneError) for problem in problems)
        raise (GoneError if all_gone else FetchError)(*(line for problem in problems for line in problem.problems))


def local_path(url: str) -> Path:
    """Return the path of a file:// URL."""
    return Path(url2pathname(urlsplit(url).path))


def ask_sizes(files: Sequence[tuple[str, str]], access: Access) -> dict[str, int]:
    """Ask servers for the sizes of files, given as (key, URL); return key → bytes, without those of unknown size.

    Raises FetchError for a size that no file has.
    """
    with ThreadPoolExecutor(WORKERS) as pool:
        sizes = pool.map(lambda file: _ask_size(file[1], access), files)
        return {key: size for (key, _), size in zip(files, sizes, strict=True) if size is not None}


def _ask_size(original: str, access: Access) -> int | None:
    url = rewrite_url(original, access.mirrors)
    if urlsplit(url).scheme == "file":
        path = local_path(url)
        return path.stat().st_size if path.is_file() else None

    def ask_head() -> requests.Response:
        with http.Session() as session:
            answer = session.head(url, allow_redirects=True, stream=True, **request_options(access, url))
            http.refuse_transient_status(answer)
            return answer

    try:
        response = ask_patiently(ask_head, "size", url, access)
    except FetchError:
        return None  # the caller then fetches the file, which reports the error
    size = parse_byte_count(response.headers.get("Content-Length", ""))
    if not response.ok or "Content-Encoding" in response.headers:
        return None
    if size is not None and size > LARGEST_FILE:
        raise FetchError(f"{redact_url(url)}: Content-Length is {size}, expected at most {LARGEST_FILE} bytes")
    return size


def ask_status(url: str, access: Access) -> int:
    """Return the status with which a server answers for a URL; 404 for a file that is not there.

    Raises UnansweredError, or FetchError for an address that cannot be asked.
    """
    if urlsplit(url).scheme == "file":
        return 200 if local_path(url).exists() else 404

    def ask_once() -> int:
        with http.Session() as session, session.get(url, stream=True, **request_options(access, url)) as answer:
            http.refuse_transient_status(answer)
            return answer.status_code

    return ask_patiently(ask_once, "status", url, access)


def read_answer(
    url: str, what: str, access: Access, at_most: int, headers: Mapping[str, str] = NO_HEADERS, query: object = None
) -> HttpAnswer:
    """Return an answer that fits into memory, to a GET, or to a POST of a query as JSON, which follows no redirect.

    With the header Range, only part of a file is an answer: a server that sends all of it gives no body. Raises
    UnansweredError; FetchError for an answer of more than `at_most` bytes or one that hardly arrives.
    """
    return ask_patiently(lambda: _read_once(url, what, access, at_most, headers, query), what, url, access)


def _read_once(
    url: str, what: str, access: Access, at_most: int, headers: Mapping[str, str], query: object
) -> HttpAnswer:
    data, pace, options = bytearray(), Pace(access.patience), request_options(access, url)
    options |= {"headers": {**options["headers"], **headers}, "stream": True, "allow_redirects": query is None}
    with http.Session() as session, session.request("POST" if query else "GET", url, json=query, **options) as answer:
        http.refuse_transient_status(answer)
        has_body = answer.ok and ("Range" not in headers or answer.status_code == requests.codes.partial_content)
        for piece in http.read_pieces(answer) if has_body else ():
            data += piece
            if len(data) > at_most or pace.is_too_slow(len(data)):
                raise FetchError(f"{what}: {redact_url(url)}: more than {at_most} bytes, or too slow")
    return HttpAnswer(answer.status_code, answer.headers, bytes(data))


T = TypeVar("T")


def ask_patiently(ask_once: Callable[[], T], what: str, url: str, access: Access) -> T:
    """Ask a server again after an error that may pass, and after the time that it asks for.

    Raises UnansweredError with the last status or cause, after ATTEMPTS or `access.patience` seconds without pauses;
    FetchError for an error that another attempt would not change.
    """
    failures, waited, has_answered = 0, 0.0, False
    while True:
        started = time.monotonic()
        try:
            with http.failures_named(f"{what}: {redact_url(url)}"):
                return ask_once()
        except TransientRequestError as error:
            failures, waited = failures + 1, waited + time.monotonic() - started
            if http.is_absent_here(error, has_answered=has_answered):
                raise UnansweredError(f"{what}: {redact_url(url)}: {error}") from error
            if failures == ATTEMPTS or waited > access.patience:
                raise UnansweredError(f"{what}: {redact_url(url)}: {error} (asked {failures} times)") from error
            has_answered = has_answered or not error.is_refused_here
            http.pause_before_retry(failures, error, access.pause, urlsplit(url).hostname or "")


def run_patiently(
    run: Callable[[], subprocess.CompletedProcess[AnyStr]], limited: re.Pattern[str], what: str, access: Access
) -> subprocess.CompletedProcess[AnyStr]:
    """Run a program that downloads; while a server asks it to come later, wait for that server, and run it again.

    uv and git wait for seconds at most, apt not at all. `limited` finds `status` and `url` in what the program says.
    """
    for failures in range(1, ATTEMPTS + 1):
        result = run()
        refusal = _find_refusal(result, limited)
        if refusal is None or failures == ATTEMPTS:
            break
        server = urlsplit(refusal["url"]).hostname or ""
        try:
            ask_status(refusal["url"], access)
        except FetchError:
            break  # the program has said which server refuses
        refused = TransientRequestError(f"{what}: the server answered {refusal['status']}")
        http.pause_before_retry(failures, refused, access.pause, server)
    return result


def _find_refusal(result: subprocess.CompletedProcess[AnyStr], limited: re.Pattern[str]) -> re.Match[str] | None:
    text = result.stderr if isinstance(result.stderr, str) else result.stderr.decode(errors="replace")
    refusals = limited.finditer(text) if result.returncode else ()
    return next((refusal for refusal in refusals if int(refusal["status"]) in http.RETRIED), None)


def _download_all(transfer: Transfer, missing: Sequence[Wanted]) -> list[FetchError]:
    """Run the downloads; Ctrl-C and a full disk stop each of them at its next chunk."""
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(_download_one, transfer, pin) for pin in missing]
        try:
            return _collect_problems(futures)
        except BaseException:
            transfer.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _collect_problems(futures: Sequence[Future[list[FetchError]]]) -> list[FetchError]:
    """Return the errors of single files; raise immediately an error that concerns all files, such as a full disk."""
    finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in finished:
        future.result()
    return [problem for future in futures for problem in future.result()]


def _download_one(transfer: Transfer, pin: Wanted) -> list[FetchError]:
    """Try each URL until the file is in the store; return the error of each URL if all fail."""
    problems: list[FetchError] = []
    with transfer.store.receiving(pin.sha256, pin.size) as file:
        if file is None:
            return []
        for url in (rewrite_url(url, transfer.access.mirrors) for url in pin.urls):
            try:
                _download_from(transfer, pin, url, file)
            except FetchError as error:
                problems.append(error)
            else:
                log_detail(f"fetched {pin.name} from {redact_url(url)}")
                return []
    return problems or [GoneError(f"{pin.name}: no configured server has it")]


def _download_from(transfer: Transfer, pin: Wanted, url: str, file: BufferedRandom) -> None:
    resumed = file.seek(0, 2) > 0
    _with_retries(transfer, pin, url, file)
    try:
        transfer.store.keep(file, pin.sha256, f"{pin.name} from {redact_url(url)}")
    except FetchError:
        if not resumed:
            raise
        # The partial file may have come from a server with other content: start again from an empty file.
        _with_retries(transfer, pin, url, file)
        transfer.store.keep(file, pin.sha256, f"{pin.name} from {redact_url(url)}")


def _with_retries(transfer: Transfer, pin: Wanted, url: str, file: BufferedRandom) -> None:
    failures, have = 0, file.seek(0, 2)
    pace = Pace(transfer.access.patience)
    while True:
        try:
            return _receive_file(transfer, pin, url, file, pace)
        except TransientRequestError as error:
            now = file.seek(0, 2)
            failures = 1 if now > have else failures + 1
            have = now
            if failures >= ATTEMPTS or http.is_absent_here(error, has_answered=bool(have)):
                raise FetchError(f"{pin.name} from {redact_url(url)}: {error}") from error
            server = urlsplit(url).hostname or ""
            http.pause_before_retry(failures, error, transfer.access.pause, server, transfer.stopped.wait)
        if transfer.stopped.is_set():
            raise FetchError(f"{pin.name}: stopped")


def _receive_file(transfer: Transfer, pin: Wanted, url: str, file: BufferedRandom, pace: Pace) -> None:
    """Append the missing bytes. Raises TransientRequestError if a retry may help, else FetchError."""
    have, at_most = file.seek(0, 2), LARGEST_FILE if pin.size is None else pin.size
    if pin.size is not None and have == pin.size:
        return
    if pin.size is not None and have > pin.size:
        have = file.truncate(0)
    for chunk in _open_chunks(transfer, pin, url, file, have):
        if transfer.stopped.is_set():
            raise FetchError(f"{pin.name}: stopped")
        file.write(chunk)
        transfer.advance(len(chunk))
        if file.tell() > at_most:
            file.truncate(0)
            raise FetchError(f"{pin.name} from {redact_url(url)}: longer than the {at_most} bytes expected")
        if pace.is_too_slow(file.tell() - have):
            raise FetchError(f"{pin.name} from {redact_url(url)}: slower than {SLOWEST} bytes in a second")
    if pin.size is not None and file.tell() < pin.size:
        raise TransientRequestError(f"ended after {file.tell()} of {pin.size} bytes")


def _open_chunks(transfer: Transfer, pin: Wanted, url: str, file: BufferedRandom, have: int) -> Iterator[bytes]:
    if urlsplit(url).scheme == "file":
        return _read_local_file(pin, url, file)
    return _read_http(transfer, pin, url, file, have)


def _read_local_file(pin: Wanted, url: str, file: BufferedRandom) -> Iterator[bytes]:
    path = local_path(url)
    file.truncate(0)
    try:
        with open_regular(path) as source:
            yield from iter(lambda: source.read(CHUNK), b"")
    except FileNotFoundError as error:
        raise GoneError(f"{pin.name}: {path}: no such file") from error
    except OSError as error:
        raise FetchError(f"{pin.name}: {path}: {error.strerror}") from error


def _read_http(transfer: Transfer, pin: Wanted, url: str, file: BufferedRandom, have: int) -> Iterator[bytes]:
    """Yield the rest of the file; if the server sends all of it, truncate the file first."""
    with http.failures_named(f"{pin.name} from {redact_url(url)}"), _send_get(transfer, url, have) as response:
        _check_response(response, pin, url, file)
        yield from http.read_pieces(response, CHUNK)


def _send_get(transfer: Transfer, url: str, have: int) -> requests.Response:
    # identity: a server that compresses on the way would break both ranges and lengths.
    ranged = {"Range": f"bytes={have}-"} if have else {}
    options = request_options(transfer.access, url)
    return transfer.session.get(url, stream=True, **{**options, "headers": {**options["headers"], **ranged}})


def request_options(access: Access, url: str) -> dict[str, Any]:
    """Return the options with which requests asks for a URL: certificates, proxies and its own password."""
    host = urlsplit(url).hostname or ""
    return {
        "headers": {"Accept-Encoding": "identity"},
        "timeout": access.timeout,
        "verify": False if host in access.insecure_hosts else access.certificates,
        "cert": access.client_certificate,
        "proxies": dict(access.proxies),
        "auth": _choose_auth(access, url),
    }


def _choose_auth(access: Access, url: str) -> Any:
    """Return the login for a URL: its own, the one or the token configured for its origin, or ~/.netrc's for its host.

    The password of a user whom an address names alone, as in https://USER@HOST, is ~/.netrc's too.

    The last one names no scheme and no port, so it is never sent without TLS, except to this machine.
    """
    parts = urlsplit(url)
    if token := access.tokens.get(http.parse_origin(url)):
        return http.make_bearer_auth(token)
    own_login = (unquote(parts.username or ""), unquote(parts.password or ""))
    login = own_login if parts.username else access.credentials.get(http.parse_origin(url))
    user, password = login or ("", "")
    if not password and (parts.scheme == "https" or is_loopback(parts.hostname or "")):
        netrc_login = requests.utils.get_netrc_auth(url)
        login = netrc_login if netrc_login and user in ("", netrc_login[0]) else login
    return login or http.send_no_password


def _check_response(response: requests.Response, pin: Wanted, url: str, file: BufferedRandom) -> None:
    have = file.seek(0, 2)
    if response.status_code == requests.codes.requested_range_not_satisfiable:
        file.truncate(0)
        raise TransientRequestError("the server has fewer bytes than were already fetched")
    http.refuse_transient_status(response)
    if not response.ok:
        is_gone = response.status_code in {requests.codes.not_found, requests.codes.gone}
        raise (GoneError if is_gone else FetchError)(
            f"{pin.name} from {redact_url(url)}: the server answered {response.status_code}"
        )
    resumes = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    if have and not (response.status_code == requests.codes.partial_content and resumes):
        file.truncate(0)
