"""Decisions: pure functions that say why, and why not the alternatives. One module per accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from entrypoints.core.errors import DOES_NOT_FIT, EntrypointError
from entrypoints.core.records import Notice

GIB = 1 << 30


class Value(NamedTuple):
    """What a setting should be, and why; `instead` says why not something else, a sentence each."""

    value: str | bool
    because: str
    instead: tuple[str, ...] = ()


class Decision(NamedTuple):
    """All that was decided, by setting, and what is to be said about the user's own choices."""

    values: Mapping[str, Value]
    findings: tuple[Notice, ...] = ()
    files: Mapping[str, str] = MappingProxyType({})
    """Path → text of what values refer to; written below the cache before vLLM starts."""


class Thresholds(NamedTuple):
    """The numbers that decisions use, as the profile carries them."""

    table: Mapping[str, Mapping[str, Any]]

    def number(self, name: str) -> float:
        """Return a threshold as a number."""
        return float(self.table[name]["value"])

    def whole(self, name: str) -> int:
        """Return a threshold as a whole number."""
        return int(self.number(name))

    def bytes(self, name: str) -> int:
        """Return a threshold that is written in GiB as bytes."""
        return int(self.number(name) * GIB)

    def words(self, name: str) -> tuple[str, ...]:
        """Return a threshold that is a list of words."""
        return tuple(self.table[name]["value"])


def gib(size: float) -> str:
    """Format bytes for people."""
    return f"{size / GIB:.1f} GiB"


def does_not_fit(message: str, hint: str) -> EntrypointError:
    """Make the one error for a model that is too large for what is there."""
    return EntrypointError(DOES_NOT_FIT, message, hint)
