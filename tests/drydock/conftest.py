"""A web server on the loopback address that can misbehave, and distributions small enough to make on the fly."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from drydock.store import Store


class Loopback(ThreadingHTTPServer):
    """Serves `files`; each request for a path first uses up one of its `faults`."""

    daemon_threads = True

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.requests: list[tuple[str, str | None, str | None]] = []
        """Path, Range and Authorization of each request."""
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def ranges(self, path: str) -> list[str | None]:
        return [wanted for asked, wanted, _ in self.requests if asked == path]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    server: Loopback

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Range"], self.headers["Authorization"]))
        faults = self.server.faults.get(self.path, [])
        fault = faults.pop(0) if faults else ""
        data = self.server.files.get(self.path)
        if data is None or fault.isdigit():
            self.send_error(int(fault or 404))
        elif fault == "wrong":
            self._send(bytes(len(data)), 0)
        elif fault == "endless":
            self._send(data * 3, 0)
        else:
            start = 0 if fault == "no range" else int((self.headers["Range"] or "bytes=0-")[6:-1])
            self._send(data, start, end=(start + len(data)) // 2 if fault == "cut" else len(data), slow=fault == "slow")

    def do_HEAD(self) -> None:
        data = self.server.files.get(self.path)
        self.send_response(200 if data is not None else 404)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()

    def _send(self, data: bytes, start: int, *, end: int | None = None, slow: bool = False) -> None:
        if start and start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.end_headers()
        for offset in range(start, len(data) if end is None else end, 1 << 16):
            self.wfile.write(data[offset : min(offset + (1 << 16), end or len(data))])
            if slow:
                threading.Event().wait(0.02)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Loopback]:
    loopback = Loopback()
    thread = threading.Thread(target=loopback.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield loopback
    loopback.shutdown()
    thread.join()
    loopback.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def make_wheel() -> Callable[..., tuple[str, bytes]]:
    """Return (file name, bytes) of a wheel."""

    def make(
        name: str, version: str, *requires: str, tag: str = "py3-none-any", content: str = ""
    ) -> tuple[str, bytes]:
        info = f"{name}-{version}.dist-info"
        needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(f"{name}.py", content)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
            archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{info}/RECORD", "")
        return f"{name}-{version}-{tag}.whl", buffer.getvalue()

    return make


@pytest.fixture
def make_deb() -> Callable[..., bytes]:
    """Return the bytes of a Debian package: an ar archive of three members (deb(5))."""

    def make(fields: dict[str, str], files: dict[str, bytes]) -> bytes:
        control = "".join(f"{key}: {value}\n" for key, value in fields.items()).encode()
        members = {
            "debian-binary": b"2.0\n",
            "control.tar.gz": _tar({"./control": control}),
            "data.tar.gz": _tar(files),
        }
        return b"!<arch>\n" + b"".join(_ar_member(name, data) for name, data in members.items())

    return make


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(name="sha256")
def sha256_function() -> Callable[[bytes], str]:
    return sha256


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.mode = 0o755
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _ar_member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)
