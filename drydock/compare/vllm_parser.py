"""How the parser of a vLLM understands words: spellings, abbreviations, negations, numbers of values. Pure.

The rules are those of Python's argparse, and of vLLM's FlexibleArgumentParser over it. Source: vllm/utils/
argparse_utils.py, parse_args.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from drydock.compare.vllm_version import ServedVersion
from drydock.lock.vllm_details import MANY, MAYBE, NOTHING, FlagDetails
from entrypoints.request.vllm_lists import BOOLEAN

LEVEL, OPTIMIZATION = "-O", "--optimization-level"
HELP = FlagDetails(names=("-h", "--help"), default="None", count=NOTHING)
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")


class FlagWords(NamedTuple):
    """A flag as written, and the words up to the next one."""

    head: str
    """The flag without `=value`."""
    values: tuple[str, ...]
    is_joined: bool
    """Whether the first value was written after `=`."""

    @property
    def written(self) -> str:
        """Return the flag with its values."""
        if self.is_joined:
            return " ".join((f"{self.head}={self.values[0]}", *self.values[1:]))
        return " ".join((self.head, *self.values))


class Understood(NamedTuple):
    """A group as one version's parser understands it."""

    flag: FlagDetails | None
    """None if there is no such flag."""
    name: str
    """The flag's long name, or as it is written if there is none."""
    is_negated: bool
    keys: tuple[str, ...]
    """Of `--flag.key.key value`: the keys."""
    values: tuple[str, ...]
    rest: tuple[str, ...]
    """Words that are no values of this flag: a model, or too many."""
    candidates: tuple[str, ...] = ()
    """What an abbreviation could mean, if that is several flags."""

    @property
    def problem(self) -> str:
        """Return why the number of values is wrong; empty if it is right."""
        count = self.flag.count if self.flag else MAYBE
        if self.keys:
            return "" if self.values else "expected a value"
        if count == NOTHING:
            return "takes no value" if self.values else ""
        return "" if self.values or count == MAYBE else "expected a value"


def split_words(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[FlagWords, ...]]:
    """Return the words before the first flag, and the flags with what follows each of them."""
    before: list[str] = []
    groups: list[FlagWords] = []
    for word in words:
        if not is_value(word):
            head, equals, value = word.partition("=")
            groups.append(FlagWords(head, (value,) if equals else (), bool(equals)))
        elif groups:
            groups[-1] = groups[-1]._replace(values=(*groups[-1].values, word))
        else:
            before.append(word)
    return tuple(before), tuple(groups)


def is_value(word: str) -> bool:
    """Return whether argparse takes a word as a value: no dash before it, a number below zero, or with a space."""
    if not word.startswith("-") or word == "-" or _NUMBER.match(word):
        return True
    return " " in word.partition("=")[0]


class VllmParser:
    """The parser of one version."""

    def __init__(self, version: ServedVersion) -> None:
        self.takes = version.lists.get("flags", {})
        self._spellings: dict[str, tuple[FlagDetails, bool]] = {}
        inverses: Sequence[str] = version.lists.get("inverses", ())
        pairs = [*zip(inverses, reversed(inverses), strict=True)]
        for flag in (*version.details.flags, HELP):
            for name, is_negated in _list_spellings(flag, self.takes, pairs):
                self._spellings.setdefault(name, (flag, is_negated))
        for name in self.takes.keys() - self._spellings.keys():
            self._spellings[name] = (FlagDetails(names=(name,), default=""), False)

    @property
    def names(self) -> frozenset[str]:
        """Return every spelling."""
        return frozenset(self._spellings)

    def understand(self, group: FlagWords) -> Understood:
        """Return what a group means. A name that is not known is kept as it is written."""
        head, values = group.head, group.values
        if head.startswith(LEVEL) and head not in self._spellings:
            head, values = self._level(head, values)
        head, *keys = head.split(".") if "." in head else [head]
        head = head.replace("_", "-") if head.startswith("--") else head
        spellings = self._matching(head)
        flags = {self._spellings[name][0].names for name in spellings}
        if len(flags) != 1:
            return Understood(None, head, False, tuple(keys), values, (), tuple(sorted(spellings)))
        flag, is_negated = self._spellings[spellings[0]]
        if not head.startswith("--") and spellings[0] != head:  # -n2
            values = (head[2:], *values)
        accepted, rest = _divide_values(flag, values, is_joined=group.is_joined, has_keys=bool(keys))
        return Understood(flag, long_name(flag), is_negated, tuple(keys), accepted, rest)

    def _level(self, head: str, values: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """Return -O3 and -O 3 as the flag that they stand for in this version."""
        attached = head[len(LEVEL) :]
        if OPTIMIZATION in self._spellings:
            return OPTIMIZATION, (attached, *values) if attached else values
        if LEVEL in self._spellings and attached and not attached.startswith("."):
            return LEVEL, (attached, *values)
        return head, values

    def _matching(self, head: str) -> list[str]:
        """Return the spellings that a word can be: itself, or else those that begin with it."""
        if head in self._spellings:
            return [head]
        if head.startswith("--"):
            return sorted(name for name in self._spellings if name.startswith(head))
        short = [head[:2]] if head[:2] in self._spellings else []
        return short + sorted(name for name in self._spellings if name.startswith(head) and not name.startswith("--"))


def _list_spellings(
    flag: FlagDetails, takes: dict[str, object], pairs: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, bool]]:
    """Yield each spelling of a flag, and whether it turns the flag off; `pairs` are beginnings of inverse flags."""
    for name in flag.names:
        yield name, False
        if takes.get(name) == BOOLEAN and name.startswith("--"):
            yield f"--no-{name[2:]}", True
            for prefix, inverse in pairs:
                if name.startswith(prefix):
                    yield inverse + name.removeprefix(prefix), True


def long_name(flag: FlagDetails) -> str:
    """Return the first long name of a flag."""
    return next((name for name in flag.names if name.startswith("--")), flag.names[0])


def _divide_values(
    flag: FlagDetails, values: tuple[str, ...], *, is_joined: bool, has_keys: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words that a flag takes as its values, and those that it leaves."""
    if flag.count == MANY and not has_keys and not is_joined:
        return values, ()
    most = 0 if flag.count == NOTHING and not is_joined and not has_keys else 1
    return values[:most], values[most:]
