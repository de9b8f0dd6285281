"""Where a host's files come from: the file system below a root, or a recorded host in memory. IO.

Both have the same three methods, `read`, `exists` and `names`, so that everything above reads them in one way.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

READ_AT_MOST = 64 * 1024
"""Bytes of one file: enough for every file read here, and a bound for a hostile or endless one."""


class FileSystem:
    """The files below a root; without one, those of the running system."""

    origin = "recorded by `facts --record`"

    def __init__(self, root: str = "") -> None:
        self.root = root.rstrip("/")

    @property
    def live(self) -> bool:
        """Whether this is the running system rather than a recorded one."""
        return not self.root

    def read(self, path: str) -> bytes:
        """Return the first READ_AT_MOST bytes of a file. Raises OSError."""
        return cut(read_regular(self.root + path, READ_AT_MOST))

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder is there."""
        return os.path.exists(self.root + path)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none where there is no such folder."""
        try:
            return os.listdir(self.root + folder)
        except OSError:
            return []


class Recorded:
    """A recorded host: texts by absolute path, and the folders that these paths imply."""

    live = False

    def __init__(self, files: Mapping[str, str], parts: Mapping[str, Any], origin: str = "") -> None:
        """Take what host.json holds; `parts` are its records by the path that a folder has them at.

        Raises ValueError when a path is both a file and a folder.
        """
        self.parts = parts
        self.origin = origin
        self._top: dict[str, Any] = {}
        for path, text in files.items():
            self._add(path, text)

    def _add(self, path: str, text: str) -> None:
        *folders, name = _steps(path)
        inside = self._top
        for folder in folders:
            inside = inside.setdefault(folder, {})
            if isinstance(inside, str):
                raise ValueError(f"{path[:80]!r}: {folder[:80]!r} is a file as well")  # noqa: TRY004 - the file is wrong
        if isinstance(inside.setdefault(name, text), dict):
            raise ValueError(f"{path[:80]!r}: is a folder as well")  # noqa: TRY004 - as above

    def _find(self, path: str) -> Any:
        """Return a file's text, a folder's entries, or None."""
        found: Any = self._top
        for step in _steps(path):
            found = found.get(step) if isinstance(found, dict) else None
        return found

    def read(self, path: str) -> bytes:
        """Return the first READ_AT_MOST bytes of a file. Raises OSError."""
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        if isinstance(found, dict):
            raise OSError(22, "not a regular file", path)
        return cut(str(found).encode()[:READ_AT_MOST])

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder is there."""
        return self._find(path) is not None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none where there is no such folder."""
        found = self._find(folder)
        return list(found) if isinstance(found, dict) else []


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step]


def read_regular(path: str, most: int) -> bytes:
    """Return the first `most` bytes of a regular file, never waiting for a pipe or a device. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(22, "not a regular file", path)
        chunks = []
        left = most
        while left and (chunk := os.read(handle, left)):
            chunks.append(chunk)
            left -= len(chunk)
    finally:
        os.close(handle)
    return b"".join(chunks)


def cut(data: bytes) -> bytes:
    """Drop a last character that READ_AT_MOST cut in two."""
    if len(data) < READ_AT_MOST:
        return data
    start = len(data) - 1
    while start > len(data) - 4 and data[start] & 0xC0 == 0x80:  # noqa: PLR2004 - continuation bytes of UTF-8
        start -= 1
    return data[:start]
