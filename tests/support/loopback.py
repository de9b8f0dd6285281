"""A web server on the loopback address that can inject faults."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class ThreadedServer(ThreadingHTTPServer):
    """A server of the loopback address that runs within a block."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Loopback(ThreadedServer):
    """Serves `files` and `redirects`. Each request for a path consumes one of its `faults`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.redirects: dict[str, str] = {}
        """Path → the URL that it redirects to."""
        self.requests: list[tuple[str, str | None, str | None]] = []
        """Path, Range and Authorization of each request."""
        super().__init__(Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def ranges(self, path: str) -> list[str | None]:
        return [requested_range for requested, requested_range, _ in self.requests if requested == path]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: tests kill clients."""


class Handler(BaseHTTPRequestHandler):
    server: Loopback

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Range"], self.headers["Authorization"]))
        faults = self.server.faults.get(self.path, [])
        fault = faults.pop(0) if faults else ""
        data = self.server.files.get(self.path)
        if self.path in self.server.redirects:
            self.send_response(302)
            self.send_header("Location", self.server.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif data is None or fault.isdigit():
            self.send_error(int(fault or 404))
        elif fault == "wrong":
            self._send(bytes(len(data)), 0)
        elif fault == "endless":
            self._send(data * 3, 0)
        else:
            start, last = self._requested_range(fault)
            whole = data[: last + 1] if last else data
            end = (start + len(whole)) // 2 if fault == "cut" else len(whole)
            self._send(whole, start, end=end, slow=fault == "slow", total=0 if fault == "no range" else len(data))

    def _requested_range(self, fault: str) -> tuple[int, int]:
        """Return the first byte of the range, and the last one; 0 for the end of the file."""
        first, _, last = (self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")
        return (0, 0) if fault == "no range" else (int(first), int(last or 0))

    def do_HEAD(self) -> None:
        data = self.server.files.get(self.path)
        self.send_response(200 if data is not None else 404)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()

    def _send(self, data: bytes, start: int, *, end: int | None = None, slow: bool = False, total: int = 0) -> None:
        if start and start >= len(data):
            self.send_error(416)
            return
        partial = start or (total and self.headers["Range"])
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{total}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.end_headers()
        for offset in range(start, len(data) if end is None else end, 1 << 16):
            self.wfile.write(data[offset : min(offset + (1 << 16), end or len(data))])
            if slow:
                threading.Event().wait(0.02)

    def log_message(self, *_: Any) -> None:
        """Do not log."""
