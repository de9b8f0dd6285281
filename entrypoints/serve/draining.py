"""The file by which the supervisor tells drydock's middleware in vLLM that the server stops. IO.

The middleware (plugin/drydock_plugin/draining.py) runs in vLLM's processes, which may be several; a file reaches all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

DRAINING_VARIABLE = "DRYDOCK_DRAINING"
"""Environment variable with the path of the file."""


class DrainFile:
    """A file that does not exist while the server serves, is empty when it leaves, and has a byte when it refuses."""

    def __init__(self, env: Mapping[str, str]) -> None:
        # The name differs for each start: a restarted container keeps its /tmp, and its process is 1 again.
        folder = env.get("TMPDIR") or "/tmp"  # noqa: S108 - the container's own
        self.path = f"{folder}/drydock-draining-{os.getpid()}-{time.time_ns()}"

    def leave(self) -> None:
        """Let vLLM close each connection after its answer, so that clients go elsewhere. Raises OSError."""
        self._resize(0)

    def refuse(self) -> None:
        """Let vLLM refuse new requests. Raises OSError."""
        self._resize(1)

    def remove(self) -> None:
        """Remove the file, if it is there."""
        try:
            os.unlink(self.path)
        except OSError:
            return

    def _resize(self, size: int) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(handle, size)  # unlike a write, it needs no space on a full disk
        finally:
            os.close(handle)
