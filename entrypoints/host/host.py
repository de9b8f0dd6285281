"""Reads the files of one host, live or recorded, and keeps what it read. IO.

There are three outcomes: absent (None), present (text), or a Failure that says why an existing file could not be read
or parsed. Nothing is guessed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from entrypoints.core.records import Failure
from entrypoints.host.source import FileSystem, Recorded

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


class Result(NamedTuple):
    """The result of a command."""

    rc: int
    stdout: str
    stderr: str


Run = Callable[[tuple[str, ...], float], Result]
"""Runs a command (arguments, time limit in seconds): live it starts a process, recorded it looks the result up."""


class Host:
    """The files of a source, or below `root` (empty for the running system), and the results of reading them."""

    def __init__(self, root: str = "", source: FileSystem | Recorded | None = None) -> None:
        self.source = source or FileSystem(root)
        self.failures: list[Failure] = []
        self.texts: dict[str, str] = {}
        self.present: set[str] = set()
        self.refused: dict[str, str] = {}

    @property
    def live(self) -> bool:
        """Whether this is the running system rather than a recorded one."""
        return self.source.live

    def text(self, path: str, *, hidden: bool = False) -> str | None:
        """Return the text of a file, or None if it does not exist. A file that cannot be read becomes a failure.

        With `hidden`, a file without permission counts as absent: a device cgroup hides GPUs in this way.
        """
        try:
            text = self.source.read(path).decode()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if hidden and isinstance(error, PermissionError):
                return None
            self.fail(path, f"{error.strerror} (errno {error.errno})", "a readable file")
            return None
        except UnicodeDecodeError as error:
            self.fail(path, f"byte {error.object[error.start]:#04x} at offset {error.start}", "UTF-8 text")
            return None
        self.texts[path] = text
        return text

    def parsed(self, path: str, parse: Callable[[str], T], default: T, *, hidden: bool = False) -> T:
        """Return a file parsed by `parse`, or `default` if it is absent or invalid. An invalid file becomes a failure.

        `parse` raises ValueError with what it expected. For `hidden` see `text`.
        """
        text = self.text(path, hidden=hidden)
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError as error:
            self.fail(path, repr(text.strip()[:80]), str(error))
            return default

    def part(self, path: str, parse: Callable[[str], T], default: T) -> T:
        """Return one part of a recorded host: already checked from host.json, or parsed from an older folder."""
        if isinstance(self.source, Recorded):
            part: T = self.source.parts[path]
            return part
        return self.parsed(path, parse, default)

    def lookup(self, path: str, read: Callable[[str], str]) -> str | None:
        """Return the result of `read(path)`, or None if the path is absent. A recorded host has it as the file's text.

        Use it for files that are not text, or must not be recorded as a whole. `read` may raise OSError.
        """
        if not self.live:
            return self.text(path)
        try:
            self.texts[path] = read(path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except OSError as error:
            self.fail(path, f"{error.strerror} (errno {error.errno})", "a readable file")
            return None
        return self.texts[path]

    def exists(self, path: str) -> bool:
        """Tell whether a file exists."""
        is_present = self.source.exists(path)
        if is_present:
            self.present.add(path)
        return is_present

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Return the paths that match a shell pattern, with accel2 before accel10."""
        paths = sorted(_glob_source(self.source, pattern), key=_by_number)
        self.present.update(paths)
        return tuple(paths)

    def openable(self, path: str) -> bool:
        """Tell whether a file exists and this user may read and write it. If not, `refused` has its mode and owner."""
        if not self.exists(path):
            return False
        rights = (self.lookup(path, _describe_rights) or "").strip()
        if rights:
            self.refused[path] = rights
        return not rights

    def fail(self, where: str, problem: str, expected: str) -> None:
        """Add a failure: something that should be readable and is not."""
        self.failures.append(Failure(where, problem, expected))


def _glob_source(source: FileSystem | Recorded, pattern: str) -> list[str]:
    """Return the paths that match a shell pattern, without hidden files."""
    from fnmatch import filter as matching_names

    folders = [""]
    for part in pattern.strip("/").split("/"):
        paths = []
        for folder in folders:
            if any(wildcard in part for wildcard in "*[?"):
                names = matching_names(source.names(folder), part)
                paths += [f"{folder}/{name}" for name in names if not name.startswith(".")]
            elif source.exists(f"{folder}/{part}"):
                paths.append(f"{folder}/{part}")
        folders = paths
    return folders


def _by_number(path: str) -> tuple[list[str], str]:
    """Return a sort key that puts accel2 before accel10, and equal numbers (1 and 01) in a fixed order."""
    parts = ["".join(part).zfill(20) if number else "".join(part) for number, part in groupby(path, str.isdecimal)]
    return parts, path


def _describe_rights(path: str) -> str:
    """Return mode, owner and group of a file, or an empty text if this process may read and write it."""
    if os.access(path, os.R_OK | os.W_OK):
        return ""
    status = os.stat(path)
    return f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
