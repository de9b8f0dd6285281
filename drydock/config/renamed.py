"""Old names of options and of keys in files, which still work with a warning for one release. Data, and how to read it.

An entry is added with the change, and goes with the second release after it that may change names (CONTRIBUTING.md,
"Releases"): `outlived` tells which.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from packaging.version import Version

from drydock.config.strict_yaml import KeyPath, Position, YamlDocument
from drydock.core.console import log
from drydock.core.errors import InputError


class OldName(NamedTuple):
    """A name that something had."""

    where: str
    """The task of an option, as it is typed; or the record of a key's file, such as Stack."""
    name: str
    """An option such as --old; or the path of a key, in which * is any key or place of a list: checks.*.old."""
    new: str
    """The option, or the last part of the path, that has this meaning now; empty: it has no effect any more."""
    after: str
    """The last release that knew only the old name."""
    because: str = ""
    """What replaces a name that has no effect any more."""

    @property
    def advice(self) -> str:
        """Return what to write."""
        last = self.name.rpartition(".")[2]
        return f"{last} is now {self.new}" if self.new else f"{last} has no effect any more: {self.because}"


OPTIONS = (
    OldName("build", "--allow-unlocked", "", "0.1.0", "build pins what the lock lacks, unless --locked is given"),
)
KEYS: tuple[OldName, ...] = ()


def current_option(task: str, option: str, table: Iterable[OldName] = OPTIONS) -> str | None:
    """Return the present name of an option, with a warning if it has another one; None: leave it out."""
    for old in table:
        if (old.where, old.name) == (task, option):
            _warn(f"{task}: {old.advice}")
            return old.new or None
    return option


def with_new_keys(record: str, document: YamlDocument, table: Iterable[OldName] = KEYS) -> YamlDocument:
    """Return a document in which keys have their present names, with a warning for each that had an old one.

    Raises InputError if a key is there under both names.
    """
    for old in table:
        if old.where == record:
            for path in [*_paths(document.data, old.name.split("."))]:
                _warn(document.problem(path, old.advice))
                document = _moved(document, path, old.new)
    return document


@functools.cache
def _warn(text: str) -> None:
    """Say it once: a file is read several times."""
    log(f"warning: {text}; a later release refuses the old name")


def outlived(version: str, released: Iterable[str], table: Iterable[OldName] = (*OPTIONS, *KEYS)) -> list[OldName]:
    """Return the entries that must go before a version is released: an earlier release has warned of them.

    A release that only repairs or adds must not refuse a name, so entries stay in it.
    """
    target = series(version)
    return [
        old for old in table if any(Version(old.after) < Version(each) and series(each) < target for each in released)
    ]


def series(version: str) -> tuple[int, ...]:
    """Return the part of a version in which nothing may end: 1 of 1.4.2, and 0.4 of 0.4.2."""
    major, minor, _ = Version(version).release
    return (major,) if major else (major, minor)


def _paths(data: Any, pattern: Sequence[str], path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of each key that a pattern describes."""
    if not pattern:
        yield path
        return
    entries: Mapping[Any, Any] = data if isinstance(data, dict) else {}
    if pattern[0] == "*" and isinstance(data, list):
        entries = dict(enumerate(data))
    for key, value in entries.items():
        if pattern[0] in (key, "*"):
            yield from _paths(value, pattern[1:], (*path, key))


def _moved(document: YamlDocument, path: KeyPath, new: str) -> YamlDocument:
    """Return the document with a key under another name, or without it."""
    *parents, last = path
    if new and (*parents, new) in document.places:
        raise InputError(document.problem(path, f"{last} is now {new}, and both are there"), hint=f"remove {last}")
    target = (*parents, new)
    places: dict[KeyPath, Position] = {}
    for each, place in document.places.items():
        if each[: len(path)] != path:
            places[each] = place
        elif new:
            places[*target, *each[len(path) :]] = place
    return document._replace(data=_renamed(document.data, path, new), places=places)


def _renamed(data: Any, path: KeyPath, new: str) -> Any:
    step, rest = path[0], path[1:]
    if isinstance(data, list):
        return [_renamed(each, rest, new) if number == step else each for number, each in enumerate(data)]
    if rest:
        return {key: _renamed(value, rest, new) if key == step else value for key, value in data.items()}
    kept = ((new if key == step else key, value) for key, value in data.items())
    return {key: value for key, value in kept if key}
