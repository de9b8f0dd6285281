"""Reads one host's files, live or recorded, and remembers what it read. IO.

There are three outcomes: absent (None), present (text), and a Failure that says why something that is there could not
be read or did not parse. Nothing is guessed.
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
    """What a command gave back."""

    rc: int
    stdout: str
    stderr: str


Run = Callable[[tuple[str, ...], float], Result]
"""Runs a command within so many seconds: the live one starts a process, a recorded one looks its answer up."""


class Host:
    """The files of a source, or below `root` (empty for the running system), and what became of reading them."""

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
        """Return a file's text, or None when there is none; a file that cannot be read becomes a failure.

        With `hidden`, one that the kernel keeps from this container is as absent: a device cgroup hides GPUs so.
        """
        try:
            text = self.source.read(path).decode()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if hidden and isinstance(error, PermissionError):
                return None
            self.fail(path, f"{os.strerror(error.errno or 0)} (errno {error.errno})", "a readable file")
            return None
        except UnicodeDecodeError as error:
            self.fail(path, f"byte {error.object[error.start]:#04x} at offset {error.start}", "UTF-8 text")
            return None
        self.texts[path] = text
        return text

    def parsed(self, path: str, parse: Callable[[str], T], default: T, *, hidden: bool = False) -> T:
        """Return what `parse` makes of a file; `default` when it is absent, or wrong, which becomes a failure.

        `parse` raises ValueError with what it expected. `hidden` as in `text`.
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
        """Return a record of a recorded host: checked before from host.json, from an older folder as in `parsed`."""
        if isinstance(self.source, Recorded):
            found: T = self.source.parts[path]
            return found
        return self.parsed(path, parse, default)

    def lookup(self, path: str, ask: Callable[[str], str]) -> str | None:
        """Return what `ask` says of a path, which a recorded host holds in the path's place; None when it is absent.

        For what is no text, and for what must not be recorded whole. `ask` raises OSError.
        """
        if not self.live:
            return self.text(path)
        try:
            self.texts[path] = ask(path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except OSError as error:
            self.fail(path, f"{error.strerror} (errno {error.errno})", "something that can be read")
            return None
        return self.texts[path]

    def exists(self, path: str) -> bool:
        """Tell whether a file is there."""
        found = self.source.exists(path)
        if found:
            self.present.add(path)
        return found

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Return the paths that match a shell pattern, accel2 before accel10; a recorded host answers the same."""
        paths = sorted(_matching(self.source, pattern), key=_by_number)
        self.present.update(paths)
        return tuple(paths)

    def openable(self, path: str) -> bool:
        """Tell whether a file is there and may be read and written here; whose it is otherwise stands in `refused`."""
        if not self.exists(path):
            return False
        rights = (self.lookup(path, _rights) or "").strip()
        if rights:
            self.refused[path] = rights
        return not rights

    def fail(self, where: str, found: str, expected: str) -> None:
        """Note something that should have been readable and was not."""
        self.failures.append(Failure(where, found, expected))


def _matching(source: FileSystem | Recorded, pattern: str) -> list[str]:
    """Return the paths that match a shell pattern, hidden files aside."""
    from fnmatch import filter as matching

    found = [""]
    for part in pattern.strip("/").split("/"):
        if "*" in part or "[" in part or "?" in part:
            inside = ((folder, matching(source.names(folder), part)) for folder in found)
            found = [f"{folder}/{name}" for folder, names in inside for name in names if not name.startswith(".")]
        else:
            found = [path for folder in found if source.exists(path := f"{folder}/{part}")]
    return found


def _by_number(path: str) -> list[str]:
    """Return what sorts accel2 before accel10."""
    return ["".join(part).zfill(20) if number else "".join(part) for number, part in groupby(path, str.isdecimal)]


def _rights(path: str) -> str:
    """Return mode, owner and group of a file that this process may not read and write; nothing of one that it may."""
    if os.access(path, os.R_OK | os.W_OK):
        return ""
    found = os.stat(path)
    return f"{stat.filemode(found.st_mode)} {found.st_uid}:{found.st_gid}"
