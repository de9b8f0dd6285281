"""A second BuildKit with a cache of its own: that of a second engine, as a builder of buildx's remote driver.

An engine speaks BuildKit's protocol on the path /grpc of its own socket, after an upgrade of the connection; buildx's
docker driver asks for it there. The remote driver expects the protocol itself, so a socket here asks for the upgrade.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.second_engine import SecondEngine

UPGRADE = b"POST /grpc HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


class _Tunnel:
    """A socket whose connections end in an engine's BuildKit."""

    def __init__(self, path: Path, engine: str) -> None:
        self._engine = engine
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client, _ = self._listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine)
                engine.sendall(UPGRADE)
                answer = b""
                while not answer.endswith(b"\r\n\r\n"):
                    answer += engine.recv(1)
                for pair in ((client, engine), (engine, client)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def remote_builder(name: str, settings: Path) -> Iterator[tuple[str, SecondEngine, Mapping[str, str]]]:
    """Yield a builder on a second BuildKit, the engine it belongs to, and the environment in which buildx knows it.

    The machine's own builders stay as they are: buildx keeps its settings in the folder.
    """
    engine = SecondEngine()
    path = engine.folder / "buildkit.sock"
    tunnel = _Tunnel(path, engine.host.removeprefix("unix://"))
    env = {**os.environ, "BUILDX_CONFIG": str(settings)}
    try:
        command = ["docker", "buildx", "create", "--name", name, "--driver", "remote", f"unix://{path}"]
        subprocess.run(command, env=env, check=True, capture_output=True)
        yield name, engine, env
    finally:
        tunnel.close()
        engine.stop()
