"""Pushes and pulls blobs: only what is missing is sent, and interrupted transfers resume. IO.

Source: distribution-spec 1.1, "Pushing blobs", "Pushing a blob in chunks", "Mounting a blob from another repository",
"Pulling blobs".
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import requests

from drydock.core import http
from drydock.core.errors import InputError, RegistryError
from drydock.core.files import (
    SLOWEST,
    Pace,
    hold_lock_file,
    open_regular,
    parse_any_json,
    parse_byte_count,
    read_bounded,
    write_atomically,
)
from drydock.core.http import TransientRequestError
from drydock.registry.registry_client import ATTEMPTS, Client, HttpRequest, RefusedError

CHUNK = 64 << 20
"""Bytes of one PATCH. An interrupted chunk is sent again as a whole unless the registry reports its offset."""
SMALLEST_CHUNK = 1 << 20
"""Bytes of the smallest PATCH after a refusal of larger ones: nginx's default limit of a request."""
READ = 1 << 18
"""Bytes read at once."""
OCTET_STREAM = {"Content-Type": "application/octet-stream"}
RESTART_STATUSES = (400, 404, 405, 411, 416, 501)
"""Answers of registries that have lost an upload, or accept a blob only in one piece."""
MAX_RESTARTS = 3
"""Restarts of the upload of one blob before the registry's refusal is final."""
LARGEST_DOCUMENT = 64 << 20
"""Bytes of a blob that is read into memory: a configuration, a bill of materials, a signature."""


class BlobContent(Protocol):
    """The bytes of a blob to push, which need not lie in one file."""

    @property
    def size(self) -> int:
        """Return the number of bytes."""

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `end`."""


class FileContent(NamedTuple):
    """A file whose bytes are a blob."""

    path: Path
    size: int

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `end`.

        Raises InputError for a file that became shorter: the registry would wait for the rest, which never comes. Also
        for one that cannot be read: an OSError would count as the connection's, and be tried again.
        """
        try:
            with open_regular(self.path) as file:
                remaining = end - file.seek(start)
                while remaining:
                    chunk = file.read(min(remaining, READ))
                    if not chunk:
                        raise InputError(f"{self.path}: became shorter while it was read")
                    remaining -= len(chunk)
                    yield chunk
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}") from error


class BytesContent(NamedTuple):
    """Bytes in memory that are a blob."""

    data: bytes

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.data)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `end`."""
        for at in range(start, end, READ):
            yield self.data[at : min(at + READ, end)]


class RemoteContent:
    """A blob of another repository, which is read while it is pushed and stored nowhere."""

    def __init__(self, source: Blobs, digest: str, size: int) -> None:
        self._source, self._digest, self.size = source, digest, size
        self._hasher, self._hashed = hashlib.sha256(), 0
        self._stream: Iterator[bytes] = iter(())
        self._at = -1
        """Where the stream continues: one request for all chunks, as long as none is sent again."""
        self._rest = b""

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `end`.

        Raises RegistryError, before the last bytes, for bytes of another digest; TransientRequestError if the
        connection breaks.
        """
        if start != self._at:
            self._stream, self._at, self._rest = self._source.receive(self._digest, start), start, b""
        while self._at < end:
            received = self._rest or next(self._stream, b"")
            if not received:
                self._at = -1
                raise TransientRequestError(f"ended after {start} of {self.size} bytes")
            piece, self._rest = received[: end - self._at], received[end - self._at :]
            self._at += len(piece)
            self._check(piece)
            yield piece

    def _check(self, piece: bytes) -> None:
        """Hash what was not hashed before. Raises RegistryError at the end for another digest."""
        before = self._at - len(piece)
        if before <= self._hashed < self._at:
            self._hasher.update(piece[self._hashed - before :])
            self._hashed = self._at
        if self._hashed == self.size and f"sha256:{self._hasher.hexdigest()}" != self._digest:
            where = self._source.client.where
            raise RegistryError(f"{where}: {self._digest}: the registry sent sha256:{self._hasher.hexdigest()} instead")


class Pushed(NamedTuple):
    """The result of pushing one blob."""

    digest: str
    size: int
    how: str
    """One of present, mounted or uploaded."""


class Blobs:
    """The blobs of one repository; `state` is the folder that records interrupted uploads."""

    def __init__(self, client: Client, state: Path, advance: Callable[[int], None] = lambda _: None) -> None:
        self.client = client
        self._state = state / client.where.host.replace(":", "_") / client.where.repository
        self.advance = advance
        self.largest_piece = CHUNK
        """Bytes of a request, as far as the registry and the proxies before it have refused larger ones."""

    def report_to(self, advance: Callable[[int], None]) -> None:
        """Report progress, in bytes, to this function."""
        self.advance = advance

    def has(self, digest: str) -> bool:
        """Tell whether the registry has a blob.

        A redirect to a storage server counts as yes. It is not followed: such URLs are often signed for GET only.
        """
        request = HttpRequest("HEAD", self.client.path(f"blobs/{digest}"))
        return bool(self.client.request(request, (200, 302, 303, 307, 308, 404)).ok)

    def read_size(self, digest: str) -> int | None:
        """Return the bytes of a blob as the registry states them; None if a storage server has it, or it is not said.

        Raises RegistryError if the registry does not have it.
        """
        request = HttpRequest("HEAD", self.client.path(f"blobs/{digest}"))
        response = self.client.request(request, (200, 302, 303, 307, 308, 404))
        if response.status_code == requests.codes.not_found:
            raise RegistryError(f"{self.client.where}: {digest}: the registry does not have this blob")
        is_own = response.status_code == requests.codes.ok
        return parse_byte_count(response.headers.get("Content-Length", "")) if is_own else None

    def push(self, source: Path | BlobContent, digest: str, mount_from: str = "") -> Pushed:
        """Upload or mount a blob unless the registry has it. Two runs on one machine take turns at each blob.

        Raises RegistryError; if a file does not match its digest, before anything is sent.
        """
        content = FileContent(source, source.stat().st_size) if isinstance(source, Path) else source
        size = content.size
        session = self._state / f"{digest.replace(':', '-')}.json"
        with hold_lock_file(session.with_suffix(".lock")):
            how = "present" if self.has(digest) else self._upload(content, digest, mount_from, session)
            session.unlink(missing_ok=True)
        if how != "uploaded":
            self.advance(size)
        return Pushed(digest, size, how)

    def pull(self, digest: str, at_most: int = LARGEST_DOCUMENT) -> Iterator[bytes]:
        """Yield a blob's bytes, and resume if the connection breaks. `at_most` is the size that its descriptor names.

        Raises RegistryError; also for a blob that is longer or hardly arrives, and at the end if the bytes do not match
        the digest.
        """
        hasher, received, failures, waited = hashlib.sha256(), 0, 0, 0.0
        pace = Pace(self.client.access.patience)
        while True:
            since = time.monotonic()
            try:
                for chunk in self.receive(digest, received):
                    hasher.update(chunk)
                    received, failures, waited = received + len(chunk), 0, 0.0
                    if received > at_most or pace.is_too_slow(received):
                        raise RegistryError(
                            f"{self.client.where}: {digest}: {_explain_partial_blob(received, at_most)}"
                        )
                    yield chunk
                    since = time.monotonic()
                break
            except TransientRequestError as error:
                failures, waited = failures + 1, waited + time.monotonic() - since
                if failures == ATTEMPTS or waited > self.client.access.patience:
                    what = f"{self.client.where}: {digest}"
                    raise self.client.unanswered(what, error, failures, waited) from error
                self.client.pause(failures, error)
        if f"sha256:{hasher.hexdigest()}" != digest:
            raise RegistryError(f"{self.client.where}: {digest}: the registry sent sha256:{hasher.hexdigest()} instead")

    # --- push -------------------------------------------------------------------------------------------------------

    def _upload(self, content: BlobContent, digest: str, mount_from: str, session: Path) -> str:
        if isinstance(content, FileContent):  # other content was hashed just now; the registry compares it anyway
            check_file(content.path, digest)
        upload = _Upload(self, content, digest, session)
        failures, best = 0, 0
        if not upload.resume() and upload.begin(mount_from) == "mounted":
            return "mounted"
        while True:
            try:
                upload.send()
            except TransientRequestError as error:
                failures = 1 if upload.offset > best else failures + 1
                best = max(best, upload.offset)
                if failures >= ATTEMPTS:
                    raise RegistryError(
                        f"{self.client.where}: {digest}: {error} (tried {failures} times)",
                        hint="run the same command to resume",
                    ) from error
                self.client.pause(failures, error)
                if self.has(digest):  # only the answer was lost
                    break
                upload.recover()
            else:
                break
        return "uploaded"

    # --- pull -------------------------------------------------------------------------------------------------------

    def receive(self, digest: str, have: int = 0) -> Iterator[bytes]:
        """Yield a blob's bytes after the first `have`, unchecked. Raises TransientRequestError if a retry may help."""
        headers = {"Range": f"bytes={have}-"} if have else {}
        request = HttpRequest("GET", self.client.path(f"blobs/{digest}"), headers=headers, stream=True)
        with self.client.attempt(request, (200, 206)) as response:
            skip = have if response.status_code == requests.codes.ok else 0  # the registry ignored the range
            length = parse_byte_count(response.headers.get("Content-Length", "")) or 0
            received = 0
            try:
                for chunk in http.read_pieces(response, READ):
                    new = chunk[max(0, skip - received) :]
                    received += len(chunk)
                    if new:
                        yield new
            except requests.RequestException as error:
                raise TransientRequestError(http.explain_request_error(error)) from error
        if received < length:
            raise TransientRequestError(f"ended after {received} of {length} bytes")


class _Upload:
    """The upload of one blob."""

    def __init__(self, blobs: Blobs, content: BlobContent, digest: str, session: Path) -> None:
        self.offset = 0
        """Bytes that the registry has."""
        self._blobs, self._client = blobs, blobs.client
        self._content, self._digest, self._size = content, digest, content.size
        self._session = session
        self._location = ""
        self._refusals = 0
        self._restarted = False
        self._in_one_piece = False
        """Whether the registry has shown that it does not take chunks."""
        self._reported = 0
        self._smallest = SMALLEST_CHUNK
        self._chunk = blobs.largest_piece if content.size > blobs.largest_piece else 0
        """Bytes of one PATCH; 0 to upload in one piece."""

    def begin(self, mount_from: str = "") -> str:
        """Start an upload, or mount the blob from another repository of the registry; return mounted or opened."""
        query, scopes = "", tuple[str, ...]()
        if mount_from and mount_from != self._client.where.repository:
            query = f"?mount={self._digest}&from={mount_from}"
            scopes = (f"repository:{mount_from}:pull",)
        url = self._client.path(f"blobs/uploads/{query}")
        request = HttpRequest("POST", url, "pull,push", {"Content-Length": "0"}, extra_scopes=scopes)
        response = self._client.request(request, (201, 202))
        if response.status_code == requests.codes.created:
            return "mounted"
        minimum = parse_byte_count(response.headers.get("OCI-Chunk-Min-Length", "")) or 0
        self._smallest = max(self._smallest, minimum)
        if self._chunk:
            self._chunk = max(self._chunk, minimum)
        self.offset = 0
        self._save_location(response, url)
        return "opened"

    def _report(self, count: int) -> None:
        self._reported += count
        self._blobs.advance(count)

    def resume(self) -> bool:
        """Resume the upload of an earlier run; return False if there is none that the registry still has."""
        try:
            saved = parse_any_json(read_bounded(self._session, CHUNK))
            self._location = str(saved["location"])
        except (OSError, ValueError, LookupError, TypeError):
            return False
        return self._ask_offset()

    def recover(self) -> None:
        """After an interruption, ask for the offset, or start again if the registry cannot tell it.

        On the second restart the upload goes in one piece: this registry does not resume chunks.
        """
        if not self._ask_offset():
            if self._restarted:
                self._chunk, self._in_one_piece = 0, True
            self._restarted = True
            self.begin()

    def send(self) -> None:
        """Send the rest and finish the upload. Raises TransientRequestError or RegistryError."""
        try:
            while True:
                try:
                    return self._send_pieces()
                except RefusedError as refused:  # by a proxy: the registry still has the upload as it was
                    if refused.status != requests.codes.request_entity_too_large:
                        raise
                    self._use_smaller_pieces(refused)
        except RefusedError as refused:
            self._refusals += 1
            if refused.status not in RESTART_STATUSES or self._refusals > MAX_RESTARTS:
                raise
            self._location = ""
            raise TransientRequestError(f"the registry lost the upload ({refused.status})") from refused

    def _send_pieces(self) -> None:
        while self._chunk and self._size - self.offset > self._chunk:
            self._patch()
        self._put()

    def _use_smaller_pieces(self, refused: RefusedError) -> None:
        """Send a quarter of the bytes in each request from now on. Raises `refused` if they are few, or must be one."""
        piece = min(self._chunk or self._size, self._size - self.offset)
        smaller = min(max(piece // 4, self._smallest), self._blobs.largest_piece)
        if smaller >= piece or self._in_one_piece:
            raise refused
        self._chunk = self._blobs.largest_piece = smaller

    def _patch(self) -> None:
        end = self.offset + self._chunk
        headers = {**OCTET_STREAM, "Content-Range": f"{self.offset}-{end - 1}", "Content-Length": str(self._chunk)}
        request = HttpRequest("PATCH", self._location, "pull,push", headers, self._body(self.offset, end))
        response = self._client.attempt(request, (202,))
        received = _range_end(response.headers.get("Range", ""))
        self.offset = end if received is None else received
        self._save_location(response, self._location)

    def _put(self) -> None:
        separator = "&" if "?" in self._location else "?"
        url = f"{self._location}{separator}digest={self._digest}"
        headers = {**OCTET_STREAM, "Content-Length": str(self._size - self.offset)}
        if self.offset:
            headers["Content-Range"] = f"{self.offset}-{self._size - 1}"
        self._client.attempt(
            HttpRequest("PUT", url, "pull,push", headers, self._body(self.offset, self._size)), (201, 204)
        )

    def _ask_offset(self) -> bool:
        if not self._location:
            return False
        try:
            response = self._client.request(HttpRequest("GET", self._location, "pull,push"), (204, 202))
        except RefusedError:
            return False
        received = _range_end(response.headers.get("Range", ""))
        if received is None or received > self._size:
            return False
        self.offset = received
        self._save_location(response, self._location)
        return True

    def _save_location(self, response: requests.Response, base: str) -> None:
        """Record where the upload continues, also for a later run, and correct the reported progress."""
        self._report(self.offset - self._reported)
        location = response.headers.get("Location", "")
        if location:
            self._location = self._client.absolute(location, base)
        if self._chunk:
            write_atomically(self._session, json.dumps({"location": self._location, "offset": self.offset}))

    def _body(self, start: int, end: int) -> Callable[[], Any]:
        return lambda: Slice(self._content, start, end, self._report) if end > start else b""


class Slice:
    """Part of a blob as a request body: with a length, and reporting progress."""

    def __init__(self, content: BlobContent, start: int, end: int, advance: Callable[[int], None]) -> None:
        self._content, self._start, self._end, self._advance = content, start, end, advance

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._content.pieces(self._start, self._end):
            yield chunk
            self._advance(len(chunk))


def check_file(path: Path, digest: str) -> None:
    """Raise RegistryError if a file's bytes do not match its digest."""
    with open_regular(path) as file:
        actual_digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    if actual_digest != digest:
        raise RegistryError(
            f"{path}: digest is {actual_digest}, expected {digest}: the file was changed on the disk",
            hint="build again with --no-cache",
        )


def _explain_partial_blob(received: int, at_most: int) -> str:
    """Say why a blob is not read to its end."""
    if received > at_most:
        return f"the registry sends more than the {at_most} bytes expected"
    return f"only {received} bytes arrived so far: slower than {SLOWEST} bytes in a second"


def _range_end(value: str) -> int | None:
    """Return the number of bytes that an upload's Range header reports, or None if it has none.

    "0-0" means one byte, or none with many registries. It counts as none: a byte sent twice is refused, not lost.
    """
    match = re.fullmatch(r"(?:bytes=)?0-(-?\d{1,19})", value.strip())
    if not match:
        return None
    last = int(match[1])
    return last + 1 if last > 0 else 0
