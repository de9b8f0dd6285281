"""Old names of verbs and options, which still work with a warning for one release. Data, and how to read it.

An entry is added with the change, and goes with the second release after it that may change names (CONTRIBUTING.md,
"Releases"): `outlived` tells which.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from packaging.version import Version

from drydock.core.console import log


class OldName(NamedTuple):
    """A name that an option had."""

    where: str
    """The task, as it is typed."""
    name: str
    new: str
    """The option that has this meaning now; empty: it has no effect any more."""
    after: str
    """The last release that knew only the old name."""
    because: str = ""
    """What replaces a name that has no effect any more."""

    @property
    def advice(self) -> str:
        """Return what to write."""
        return f"{self.name} is now {self.new}" if self.new else f"{self.name} has no effect any more: {self.because}"


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
Old = OldName | OldVerb | OldValue
EVERY: tuple[Old, ...] = (*OPTIONS, *VERBS, *VALUES)


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
