"""The files between the supervisor and drydock's plug-in in vLLM's processes, which may be several. IO.

By one the middleware (plugin/drydock_plugin/draining.py) hears that the server stops. By the other one the supervisor
hears what vLLM says of its memory, and what it refuses (plugin/drydock_plugin/supervisor_report.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from entrypoints.core.folders import read_bounded

DRAINING_VARIABLE, REPORT_VARIABLE = "DRYDOCK_DRAINING", "DRYDOCK_REPORT"
"""Environment variables with the paths of the files."""
_REPORT_AT_MOST = 1 << 17
"""Bytes of a report."""
_REFUSED = '{"refused": '
"""Beginning of a line of a report with vLLM's words."""
_SENTENCES, _SENTENCE_AT_MOST = 2, 1000
"""Sentences of such a line, and characters of one."""


class DrainFile:
    """A file that does not exist while the server serves, is empty when it leaves, and has a byte when it refuses."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.path = _name_new_file(env, "draining")

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


class ReportFile:
    """The file that vLLM's processes append to; without a folder for it, nothing is reported."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.path = _name_new_file(env, "report")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.close(os.open(self.path, flags, 0o600))
        except OSError:
            self.path = ""

    def take(self) -> str:
        """Return what was reported, and remove the file; empty if it was taken before."""
        if not self.path:
            return ""
        try:
            text = read_bounded(self.path, _REPORT_AT_MOST).decode(errors="replace")
        except OSError:
            text = ""
        with suppress(OSError):
            os.unlink(self.path)
        return text


def parse_refusal(report: str) -> tuple[str, ...]:
    """Return the words in which vLLM last refused its configuration; none if it did not."""
    lines = [line for line in report.splitlines() if line.startswith(_REFUSED)]
    if not lines:
        return ()
    import json

    try:
        sentences = json.loads(lines[-1])["refused"][:_SENTENCES]
        return tuple(sentence[:_SENTENCE_AT_MOST] for sentence in sentences if isinstance(sentence, str))
    except (ValueError, TypeError, LookupError, RecursionError):  # another program of the container wrote it
        return ()


def _name_new_file(env: Mapping[str, str], purpose: str) -> str:
    """Return a path that differs for each start: a restarted container keeps its /tmp, and its process is 1 again."""
    folder = env.get("TMPDIR") or "/tmp"  # noqa: S108 - the container's own
    return f"{folder}/drydock-{purpose}-{os.getpid()}-{time.time_ns()}"
