"""Blobs up and down: only what is missing travels, and what broke off is taken up again. IO.

Source: distribution-spec 1.1, "Pushing blobs", "Pushing a blob in chunks", "Mounting a blob from another repository",
"Pulling blobs".
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import requests

from drydock.core.errors import RegistryError
from drydock.core.files import exclusive, write_atomically
from drydock.registry.client import ATTEMPTS, Client, HttpRequest, RefusedError, RetryableRequest, reason

CHUNK = 64 << 20
"""Bytes of one PATCH. What of a chunk came before a cut is lost at a registry that does not say where it stands."""
READ = 1 << 18
"""Bytes read at once."""
OCTETS = {"Content-Type": "application/octet-stream"}
LOST = (400, 404, 405, 411, 413, 416, 501)
"""What registries answer that have lost an upload, or want a blob in one piece."""
REFUSALS = 3
"""Times that a registry may refuse to go on with an upload of one blob."""


class Pushed(NamedTuple):
    """What became of one blob."""

    digest: str
    size: int
    how: str
    """present, mounted or uploaded."""


class Blobs:
    """The blobs of one repository; `state` is the folder that remembers uploads that broke off."""

    def __init__(self, client: Client, state: Path, advance: Callable[[int], None] = lambda _: None) -> None:
        self.client = client
        self._state = state / client.where.host.replace(":", "_") / client.where.repository
        self._advance = advance

    def report_to(self, advance: Callable[[int], None]) -> None:
        """Tell this function of every byte that is settled."""
        self._advance = advance

    def has(self, digest: str) -> bool:
        """Tell whether the registry holds a blob.

        One that sends on to a storage holds it; that is not followed, since storages sign a URL for GET alone.
        """
        asked = HttpRequest("HEAD", self.client.path(f"blobs/{digest}"))
        return bool(self.client.request(asked, (200, 302, 303, 307, 308, 404)).ok)

    def push(self, path: Path, digest: str, mount_from: str = "") -> Pushed:
        """See that the registry holds a file under its digest. Two runs on one machine take turns at each blob.

        Raises RegistryError; where the disk changed the file's bytes, before anything is sent.
        """
        size = path.stat().st_size
        session = self._state / f"{digest.replace(':', '-')}.json"
        with exclusive(session.with_suffix(".lock")):
            how = "present" if self.has(digest) else self._upload(path, digest, size, mount_from, session)
            session.unlink(missing_ok=True)
        if how != "uploaded":
            self._advance(size)
        return Pushed(digest, size, how)

    def pull(self, digest: str) -> Iterator[bytes]:
        """Yield a blob's bytes, asking on where the connection breaks.

        Raises RegistryError, at the end also where the bytes are not the digest's.
        """
        hasher, received, failures = hashlib.sha256(), 0, 0
        while True:
            try:
                for chunk in self._receive(digest, received):
                    hasher.update(chunk)
                    received, failures = received + len(chunk), 0
                    yield chunk
                break
            except RetryableRequest as cut:
                failures += 1
                if failures >= ATTEMPTS:
                    raise RegistryError(f"{self.client.where}: {digest}: {cut}, {failures} times in a row") from cut
                self.client.pause(failures, cut)
        if f"sha256:{hasher.hexdigest()}" != digest:
            raise RegistryError(f"{self.client.where}: {digest}: the registry sent sha256:{hasher.hexdigest()} for it")

    # --- up ---------------------------------------------------------------------------------------------------------

    def _upload(self, path: Path, digest: str, size: int, mount_from: str, session: Path) -> str:
        check_file(path, digest)
        upload = _Upload(self.client, path, digest, size, session, self._advance)
        failures, best = 0, 0
        if not upload.taken_up() and upload.begin(mount_from) == "mounted":
            return "mounted"
        while True:
            try:
                upload.send()
            except RetryableRequest as cut:
                failures = 1 if upload.offset > best else failures + 1
                best = max(best, upload.offset)
                if failures >= ATTEMPTS:
                    raise RegistryError(f"{self.client.where}: {digest}: {cut}, {failures} times in a row",
                                        hint="run the same command again: it goes on from here") from cut  # fmt: skip
                self.client.pause(failures, cut)
                if self.has(digest):  # the answer was lost, not the blob
                    break
                upload.recover()
            else:
                break
        return "uploaded"

    # --- down -------------------------------------------------------------------------------------------------------

    def _receive(self, digest: str, have: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={have}-"} if have else {}
        asked = HttpRequest("GET", self.client.path(f"blobs/{digest}"), headers=headers, stream=True)
        with self.client.attempt(asked, (200, 206)) as response:
            skip = have if response.status_code == requests.codes.ok else 0
            length = int(response.headers.get("Content-Length") or -1)
            got = 0
            try:
                for chunk in response.iter_content(READ):
                    got += len(chunk)
                    kept = chunk[max(0, skip - (got - len(chunk))) :]
                    if kept:
                        yield kept
            except requests.RequestException as error:
                raise RetryableRequest(reason(error)) from error
        if 0 <= got < length:
            raise RetryableRequest(f"ended after {got} of {length} bytes")


class _Upload:
    """One blob on its way."""

    def __init__(
        self, client: Client, path: Path, digest: str, size: int, session: Path, advance: Callable[[int], None]
    ) -> None:
        self.offset = 0
        """Bytes that the registry has."""
        self._client, self._path, self._digest, self._size = client, path, digest, size
        self._session, self._advance = session, advance
        self._location = ""
        self._refusals = 0
        self._lost = False
        self._shown = 0
        self._chunk = CHUNK if size > CHUNK else 0
        """0: in one piece."""

    def begin(self, mount_from: str = "") -> str:
        """Open an upload, or have the blob mounted from another repository of the registry."""
        query, also = "", tuple[str, ...]()
        if mount_from and mount_from != self._client.where.repository:
            query = f"?mount={self._digest}&from={mount_from}"
            also = (f"repository:{mount_from}:pull",)
        asked = HttpRequest("POST", self._client.path(f"blobs/uploads/{query}"), "pull,push", also=also)
        asked = asked._replace(headers={"Content-Length": "0"})
        response = self._client.request(asked, (201, 202))
        if response.status_code == requests.codes.created:
            return "mounted"
        least = response.headers.get("OCI-Chunk-Min-Length", "")
        self._chunk = max(self._chunk, int(least)) if self._chunk and least.isdigit() else self._chunk
        self.offset = 0
        self._follow(response, asked.url)
        return "opened"

    def _count(self, sent: int) -> None:
        self._shown += sent
        self._advance(sent)

    def taken_up(self) -> bool:
        """Go on with the upload that an earlier run left, if the registry still knows it and where it stands."""
        try:
            left = json.loads(self._session.read_text())
            self._location = str(left["location"])
        except (OSError, ValueError, KeyError):
            return False
        return self._ask_offset()

    def recover(self) -> None:
        """After a cut: ask how far it came, or start it anew where the registry cannot tell.

        Where that happens again, chunks are no gain, and each of them a risk: it goes in one piece then.
        """
        if not self._ask_offset():
            self._chunk = 0 if self._lost else self._chunk
            self._lost = True
            self.begin()

    def send(self) -> None:
        """Send the rest and close the upload. Raises Cut or RegistryError."""
        try:
            while self._chunk and self._size - self.offset > self._chunk:
                self._patch()
            self._put()
        except RefusedError as refused:
            self._refusals += 1
            if refused.status not in LOST or self._refusals > REFUSALS:
                raise
            self._location = ""
            raise RetryableRequest(f"the registry lost the upload ({refused.status})") from refused

    def _patch(self) -> None:
        end = self.offset + self._chunk
        headers = {**OCTETS, "Content-Range": f"{self.offset}-{end - 1}", "Content-Length": str(self._chunk)}
        asked = HttpRequest("PATCH", self._location, "pull,push", headers, self._slice(self.offset, end))
        response = self._client.attempt(asked, (202,))
        have = _range_end(response.headers.get("Range", ""))
        self.offset = end if have is None else have
        self._follow(response, self._location)

    def _put(self) -> None:
        mark = "&" if "?" in self._location else "?"
        url = f"{self._location}{mark}digest={self._digest}"
        headers = {**OCTETS, "Content-Length": str(self._size - self.offset)}
        if self.offset:
            headers["Content-Range"] = f"{self.offset}-{self._size - 1}"
        self._client.attempt(
            HttpRequest("PUT", url, "pull,push", headers, self._slice(self.offset, self._size)), (201, 204)
        )

    def _ask_offset(self) -> bool:
        if not self._location:
            return False
        try:
            response = self._client.request(HttpRequest("GET", self._location, "pull,push"), (204, 202))
        except RefusedError:
            return False
        have = _range_end(response.headers.get("Range", ""))
        if have is None or have > self._size:
            return False
        self.offset = have
        self._follow(response, self._location)
        return True

    def _follow(self, response: requests.Response, base: str) -> None:
        """Remember where the upload goes on, also for a run after this one, and set the progress right."""
        self._count(self.offset - self._shown)
        location = response.headers.get("Location", "")
        if location:
            self._location = self._client.absolute(location, base)
        if self._chunk:
            write_atomically(self._session, json.dumps({"location": self._location, "offset": self.offset}))

    def _slice(self, start: int, end: int) -> Callable[[], Any]:
        return lambda: Slice(self._path, start, end, self._count) if end > start else b""


class Slice:
    """Part of a file, as requests sends it: with a length, and telling how far it is."""

    def __init__(self, path: Path, start: int, end: int, advance: Callable[[int], None]) -> None:
        self._path, self._start, self._end, self._advance = path, start, end, advance

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            left = self._end - file.seek(self._start)
            while left and (chunk := file.read(min(left, READ))):
                left -= len(chunk)
                yield chunk
                self._advance(len(chunk))


def check_file(path: Path, digest: str) -> None:
    """Raise RegistryError where a file's bytes are not its digest's."""
    with path.open("rb") as file:
        found = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    if found != digest:
        raise RegistryError(
            f"{path}: is {found}, its name says {digest}: the file was changed on the disk",
            hint="build again with --no-cache",
        )


def _range_end(value: str) -> int | None:
    """Return the number of bytes that an upload's Range header says are there; None where it says nothing.

    "0-0" means one byte, or with many registries none; taken for none, since sending a byte twice is refused loudly.
    """
    found = re.fullmatch(r"(?:bytes=)?0-(-?\d+)", value.strip())
    if not found:
        return None
    last = int(found[1])
    return last + 1 if last > 0 else 0


def default_state(cache: Path) -> Path:
    """Return the folder below drydock's own that remembers uploads."""
    return Path(os.fspath(cache)) / "uploads"
