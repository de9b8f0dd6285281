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


class OldVerb(NamedTuple):
    """A verb that had another name, or that an option made another verb."""

    name: str
    """As it was typed."""
    new: str
    """As it is typed now."""
    after: str
    """The last release that knew only the old name."""
    option: str = ""
    """The option with which the old verb did this; empty: any."""
    has_value: bool = True
    """Whether the option's value is the new verb's first word."""
    keeps_option: bool = False
    """Whether the new verb has the option too."""

    @property
    def advice(self) -> str:
        """Return what to write."""
        return f"`{f'{self.name} {self.option}'.strip()}` is now `{self.new}`"


class OldValue(NamedTuple):
    """A value of an option that had another name."""

    where: str
    """The task, as it is typed."""
    option: str
    name: str
    new: str
    after: str
    """The last release that knew only the old name."""


LAST = "0.1.0"
"""The release before the table of verbs (docs/reference/commands.md)."""
VERBS = (
    OldVerb("verify", "policy", LAST, "--print-policy"),  # before --reference, which it takes too
    OldVerb("verify", "image verify", LAST, "--reference"),
    OldVerb("audit", "image audit", LAST, "--reference"),
    OldVerb("lock", "outdated", LAST, "--outdated", has_value=False),
    OldVerb("lock", "audit", LAST, "--advisories", has_value=False, keeps_option=True),
    OldVerb("inspect", "image inspect", LAST),
    OldVerb("diff", "image diff", LAST),
    OldVerb("update", "bump", LAST),
    OldVerb("init", "project init", LAST),
    OldVerb("upgrade", "project upgrade", LAST),
    OldVerb("bundle", "bundle create", LAST),
    OldVerb("model", "model demo", LAST),
)
VALUES = (OldValue("run", "--format", "k8s", "kubernetes", LAST),)
_SIGNING = ("publish", "foundations push", "model push", "release files", "ci publish")
_VERIFYING = ("build", "image verify", "image audit", "bundle load", "policy")
_BY_SSH = ("topology up", "topology down", "topology check")
_WITH_HOSTS = ("size", "recipes", "topology init", "topology render", "topology up", "topology check")
OPTIONS = (
    OldName("build", "--allow-unlocked", "", LAST, "build pins what the lock lacks, unless --locked is given"),
    *(OldName(verb, "--key", "--sign-key", LAST) for verb in _SIGNING),
    *(OldName(verb, "--key", "--verify-key", LAST) for verb in _VERIFYING),
    *(OldName(verb, "--key", "--ssh-key", LAST) for verb in _BY_SSH),
    *(OldName(verb, "--hosts", "--root", LAST) for verb in _WITH_HOSTS),
    OldName("size", "--length", "--max-model-len", LAST),
    OldName("bundle create", "--sign", "--sign-key", LAST),
)
KEYS: tuple[OldName, ...] = ()
Old = OldName | OldVerb | OldValue
EVERY: tuple[Old, ...] = (*OPTIONS, *KEYS, *VERBS, *VALUES)


def current_option(task: str, option: str, table: Iterable[OldName] = OPTIONS) -> str | None:
    """Return the present name of an option, with a warning if it has another one; None: leave it out."""
    for old in table:
        if (old.where, old.name) == (task, option):
            _warn_once(f"{task}: {old.advice}")
            return old.new or None
    return option


def current_value(task: str, option: str, value: str, table: Iterable[OldValue] = VALUES) -> str:
    """Return the present name of an option's value, with a warning if it has another one."""
    for old in table:
        if (old.where, old.option, old.name) == (task, option, value):
            _warn_once(f"{task}: {option} {value} is now {option} {old.new}")
            return old.new
    return value


def current_verb(words: Sequence[str], table: Iterable[OldVerb] = VERBS) -> list[str]:
    """Return a line's words with the present name of its verb first, with a warning if it had another one."""
    for old in table:
        if words[:1] != [old.name]:
            continue
        place = next((place for place, word in enumerate(words) if word.partition("=")[0] == old.option), 0)
        if old.option and not place:
            continue
        _warn_once(old.advice)
        if not old.option or old.keeps_option:
            return [old.new, *words[1:]]
        _, equals, value = words[place].partition("=")
        word_count = 2 if old.has_value and not equals else 1
        first = [value] if equals else list(words[place + 1 : place + word_count])
        return [old.new, *first, *words[1:place], *words[place + word_count :]]
    return [*words]


def with_new_keys(record: str, document: YamlDocument, table: Iterable[OldName] = KEYS) -> YamlDocument:
    """Return a document in which keys have their present names, with a warning for each that had an old one.

    Raises InputError if a key is there under both names.
    """
    for old in table:
        if old.where == record:
            for path in [*_find_paths(document.data, old.name.split("."))]:
                _warn_once(document.problem(path, old.advice))
                document = _move_key(document, path, old.new)
    return document


@functools.cache
def _warn_once(text: str) -> None:
    """Say it once: a file is read several times."""
    log(f"warning: {text}; a later release refuses the old name")


def find_outlived_names(version: str, released: Iterable[str], table: Iterable[Old] = EVERY) -> list[Old]:
    """Return the entries that must go before a version is released: an earlier release has warned of them.

    A release that only repairs or adds must not refuse a name, so entries stay in it.
    """
    target = parse_series(version)
    return [
        old
        for old in table
        if any(Version(old.after) < Version(release) and parse_series(release) < target for release in released)
    ]


def parse_series(version: str) -> tuple[int, ...]:
    """Return the part of a version in which nothing may end: 1 of 1.4.2, and 0.4 of 0.4.2."""
    major, minor, _ = Version(version).release
    return (major,) if major else (major, minor)


def _find_paths(data: Any, pattern: Sequence[str], path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of each key that a pattern describes."""
    if not pattern:
        yield path
        return
    entries: Mapping[Any, Any] = data if isinstance(data, dict) else {}
    if pattern[0] == "*" and isinstance(data, list):
        entries = dict(enumerate(data))
    for key, value in entries.items():
        if pattern[0] in (key, "*"):
            yield from _find_paths(value, pattern[1:], (*path, key))


def _move_key(document: YamlDocument, path: KeyPath, new: str) -> YamlDocument:
    """Return the document with a key under another name, or without it."""
    *parents, last = path
    if new and (*parents, new) in document.places:
        raise InputError(document.problem(path, f"{last} is now {new}, and both are there"), hint=f"remove {last}")
    target = (*parents, new)
    places: dict[KeyPath, Position] = {}
    for old_path, place in document.places.items():
        if old_path[: len(path)] != path:
            places[old_path] = place
        elif new:
            places[*target, *old_path[len(path) :]] = place
    return document._replace(data=_rename_key(document.data, path, new), places=places)


def _rename_key(data: Any, path: KeyPath, new: str) -> Any:
    step, rest = path[0], path[1:]
    if isinstance(data, list):
        return [_rename_key(item, rest, new) if number == step else item for number, item in enumerate(data)]
    if rest:
        return {key: _rename_key(value, rest, new) if key == step else value for key, value in data.items()}
    pairs = ((new if key == step else key, value) for key, value in data.items())
    return {key: value for key, value in pairs if key}
