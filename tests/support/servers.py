"""The real Debian docker-registry on the loopback address, and a proxy that injects faults."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

import requests

from tests.support.needed_programs import require_program
from tests.support.ports import free_port

PASSWORD = "correct horse"  # noqa: S105 - of the test registry
HTPASSWD = "someone:$2b$05$DFZoaI09KhcoJu5hF4S5Qu/sErKKszCJXlzPIs77k0ICrVaZKcs72\n"
"""PASSWORD, encrypted with bcrypt by `htpasswd -B`."""


class Registry:
    """A registry that keeps its images in a folder; with `users` it requires credentials.

    `certificate` is a file with a key and its certificate: it then speaks TLS only.
    """

    def __init__(
        self, folder: Path, *, users: bool = False, address: str = "127.0.0.1", certificate: Path | None = None
    ) -> None:
        self.folder, self.port = folder, free_port()
        self.host = f"{address}:{self.port}"
        self._config = folder / f"config-{self.port}.yml"
        folder.mkdir(parents=True, exist_ok=True)
        tls = f", tls: {{certificate: {certificate}, key: {certificate}}}" if certificate else ""
        self._config.write_text(self._text(tls, users=users))
        self._process: subprocess.Popen[bytes] | None = None

    def _text(self, tls: str, *, users: bool) -> str:
        (self.folder / "htpasswd").write_text(HTPASSWD)
        auth = f"auth: {{htpasswd: {{realm: tests, path: {self.folder / 'htpasswd'}}}}}\n" if users else ""
        return (
            f"version: 0.1\nlog: {{level: warn}}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.folder / 'data'}}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '{self.host}', secret: tests{tls}}}\n{auth}"
        )

    @property
    def command(self) -> tuple[str, ...]:
        """The command that serves its folder."""
        return (require_program("docker-registry"), "serve", str(self._config))

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log)
        for _ in range(200):
            try:
                requests.get(f"http://{self.host}/v2/", timeout=1)
            except requests.ConnectionError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError((self.folder / "log").read_text())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def blob_file(self, digest: str) -> Path:
        """Return the file in which the registry stores a blob."""
        hexadecimal = digest.removeprefix("sha256:")
        return self.folder / "data/docker/registry/v2/blobs/sha256" / hexadecimal[:2] / hexadecimal / "data"


class FaultyProxy:
    """Forwards TCP to a registry; with the given probability it drops, delays, truncates or answers an error itself.

    Each connection carries one request: the proxy asks both sides to close it, so that every request can have a fault.
    """

    def __init__(self, target: int, probability: float, seed: int) -> None:
        self.probability, self._target, self._random = probability, target, random.Random(seed)  # noqa: S311 - repeatable
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(20)
                self._request(client)
        except OSError:
            return  # the client or the registry closed the connection

    def _request(self, client: socket.socket) -> None:
        head, rest = self._head(client)
        if not head:
            return
        fault = self._random.choice(("drop", "delay", "truncate", "lose", "500", "503", "429"))
        fault = fault if self._random.random() < self.probability else ""
        if fault == "drop":
            return
        if fault in ("500", "503", "429"):
            client.sendall(
                f"HTTP/1.1 {fault} No\r\nContent-Length: 0\r\nRetry-After: 0\r\nConnection: close\r\n\r\n".encode()
            )
            return
        if fault == "delay":
            time.sleep(self._random.uniform(0.01, 0.1))
        with socket.create_connection(("127.0.0.1", self._target), timeout=20) as server:
            answer = self._forward(client, server, head, rest, fault)
        if answer and fault != "lose":  # lose: the registry has answered, but the client gets nothing
            cut = fault == "truncate" and not self._length(head)
            client.sendall(answer[: len(answer) // 2] if cut else answer)

    def _forward(self, client: socket.socket, server: socket.socket, head: bytes, rest: bytes, fault: str) -> bytes:
        """Forward a request to the registry and return its answer; empty if the request was truncated."""
        length = self._length(head)
        server.sendall(head)
        bytes_sent, cut = 0, self._random.randrange(length) if fault == "truncate" and length else length
        while bytes_sent < min(cut, length):
            chunk = rest or client.recv(1 << 16)
            rest = b""
            if not chunk:
                return b""
            server.sendall(chunk[: cut - bytes_sent])
            bytes_sent += len(chunk)
        if bytes_sent < length or (cut < length):
            return b""  # only a part of the body was sent
        answer = b""
        while chunk := server.recv(1 << 16):
            answer += chunk
        return answer

    @staticmethod
    def _head(client: socket.socket) -> tuple[bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = client.recv(1 << 16)
            if not chunk:
                return b"", b""
            data += chunk
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        return b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n", rest

    @staticmethod
    def _length(head: bytes) -> int:
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                return int(line.partition(b":")[2])
        return 0
