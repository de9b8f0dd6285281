"""The files between the supervisor and drydock's plug-in in vLLM's processes, which may be several. IO.

By one the middleware (plugin/drydock_plugin/draining.py) hears that the server stops. By the other one the supervisor
hears what vLLM says of its memory, and what it refuses (plugin/drydock_plugin/supervisor_report.py). In a folder each
process has a file for its stacks (plugin/drydock_plugin/__init__.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from entrypoints.core.folders import read_bounded
from entrypoints.host.processes import handles_signal

DRAINING_VARIABLE, REPORT_VARIABLE, STACKS_VARIABLE = "DRYDOCK_DRAINING", "DRYDOCK_REPORT", "DRYDOCK_STACKS"
"""Environment variables with the paths of the files and of the folder."""
STACKS_SIGNAL = 50
"""As the plug-in has it, which imports nothing from here."""
STACKS_AT_MOST = 1 << 17
"""Bytes that are read of one process; faulthandler writes at most 100 threads with 100 lines each."""
_SETTLED, _LOOK_EVERY = 5, 0.01
"""A file that has not grown for so many looks is complete; seconds between two."""
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


class StacksFolder:
    """The folder in which each Python process of vLLM has a file `PID.DESCRIPTOR`; without it there are no stacks."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def create(cls, env: Mapping[str, str]) -> StacksFolder:
        """Make the folder of a start."""
        path = _name_new_file(env, "stacks")
        try:
            os.mkdir(path, 0o700)
        except OSError:
            path = ""
        return cls(path)

    def read_stacks(self, seconds: float) -> dict[int, str]:
        """Let each process write its stacks, for at most some seconds; return them by pid. One may have none."""
        files = {pid: path for pid, path in self._list_files() if _ask_for_stacks(pid, path)}
        sizes: dict[int, list[int]] = {pid: [] for pid in files}
        due = time.monotonic() + seconds
        while time.monotonic() < due and not all(map(_is_complete, sizes.values())):
            time.sleep(_LOOK_EVERY)
            for pid, path in files.items():
                sizes[pid].append(_read_size(path))
        return {pid: _take_text(path) for pid, path in files.items()}

    def remove(self) -> None:
        """Remove the folder with its files, if it is there."""
        for _, path in self._list_files():
            with suppress(OSError):
                os.unlink(path)
        with suppress(OSError):
            os.rmdir(self.path)

    def _list_files(self) -> list[tuple[int, str]]:
        try:
            names = sorted(os.listdir(self.path)) if self.path else []
        except OSError:
            names = []
        pids = ((name.partition(".")[0], f"{self.path}/{name}") for name in names)
        return [(int(pid), path) for pid, path in pids if pid.isdecimal()]


def _ask_for_stacks(pid: int, path: str) -> bool:
    """Send a process the signal, which would end one that does not handle it; return whether it was sent.

    The process must still have the file, or it would write into whatever has the descriptor now.
    """
    try:
        is_open = os.path.samefile(f"/proc/{pid}/fd/{path.rpartition('.')[2]}", path)
        if is_open and handles_signal(pid, STACKS_SIGNAL):
            os.truncate(path, 0)  # what was asked for before may have come late
            os.kill(pid, STACKS_SIGNAL)
            return True
    except OSError:
        return False
    return False


def _is_complete(sizes: list[int]) -> bool:
    return len(sizes) > _SETTLED and sizes[-1] > 0 and sizes[-1] == sizes[-1 - _SETTLED]


def _read_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _take_text(path: str) -> str:
    """Return the beginning of a file, and empty it."""
    try:
        with open(path, "rb") as file:
            text = file.read(STACKS_AT_MOST).decode(errors="replace")
        os.truncate(path, 0)
    except OSError:
        return ""
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
