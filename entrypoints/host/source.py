"""Sources of a host's files: the file system below a root, or a recorded host in memory. IO.

Both have the methods `read`, `exists` and `names`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from entrypoints.core.folders import read_regular

READ_AT_MOST = 64 * 1024
"""Bytes read from one file: enough for every file that probes read, and a limit for an endless one."""


class FileSystem:
    """The files below a root, or of the running system if there is no root."""

    origin = "recorded by `facts --record`"

    def __init__(self, root: str = "") -> None:
        self.root = root.rstrip("/")
        self._inside = os.path.realpath(root)

    @property
    def live(self) -> bool:
        """Whether this is the running system rather than a recorded one."""
        return not self.root

    def read(self, path: str) -> bytes:
        """Return the first READ_AT_MOST bytes of a file. Raises OSError."""
        return trim_utf8(read_regular(self._place(path), READ_AT_MOST))

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder exists."""
        try:
            return os.path.exists(self._place(path))
        except OSError:
            return False

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if the folder does not exist."""
        try:
            return os.listdir(self._place(folder))
        except OSError:
            return []

    def _place(self, path: str) -> str:
        """Return the path of a file. Raises OSError for a link out of a recorded host, to a file of this one."""
        if self.live:
            return path
        place = os.path.realpath(self.root + path)
        if os.path.commonpath((place, self._inside)) != self._inside:
            raise OSError(errno.EXDEV, "a link out of the recorded host", path)
        return place


class Recorded:
    """A recorded host: texts by absolute path. Folders follow from these paths."""

    live = False

    def __init__(self, files: Mapping[str, str], parts: Mapping[str, Any], origin: str = "") -> None:
        """Store the contents of host.json. `parts` holds its records, by their path in a host recorded as a folder.

        Raises ValueError if a path is both a file and a folder.
        """
        self.parts = parts
        self.origin = origin
        self._top: dict[str, Any] = {}
        for path, text in files.items():
            self._add(path, text)

    def _add(self, path: str, text: str) -> None:
        *folders, name = _split_path(path)
        inside = self._top
        for folder in folders:
            inside = inside.setdefault(folder, {})
            if isinstance(inside, str):
                raise ValueError(f"{path[:80]!r}: {folder[:80]!r} is also a file")  # noqa: TRY004 - the file is wrong
        if isinstance(inside.setdefault(name, text), dict):
            raise ValueError(f"{path[:80]!r}: is also a folder")  # noqa: TRY004 - as above

    def _find(self, path: str) -> Any:
        """Return a file's text, a folder's entries, or None."""
        node: Any = self._top
        for step in _split_path(path):
            node = node.get(step) if isinstance(node, dict) else None
        return node

    def read(self, path: str) -> bytes:
        """Return the first READ_AT_MOST bytes of a file. Raises OSError."""
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        if isinstance(node, dict):
            raise OSError(22, "not a regular file", path)
        return trim_utf8(str(node).encode()[:READ_AT_MOST])

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder exists."""
        return self._find(path) is not None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if the folder does not exist."""
        node = self._find(folder)
        return list(node) if isinstance(node, dict) else []


def _split_path(path: str) -> list[str]:
    return [step for step in path.split("/") if step]


def trim_utf8(data: bytes) -> bytes:
    """Remove an incomplete UTF-8 character at the end of READ_AT_MOST bytes."""
    if len(data) < READ_AT_MOST:
        return data
    start = len(data) - 1
    while start > len(data) - 4 and data[start] & 0xC0 == 0x80:  # noqa: PLR2004 - continuation bytes of UTF-8
        start -= 1
    return data[:start]
