"""The records of decisions: a value, its reason, and the rejected alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from entrypoints.core.errors import DOES_NOT_FIT, EntrypointError
from entrypoints.core.records import Notice, Use, Value
from entrypoints.core.units import GIB


class Decision(NamedTuple):
    """The decided settings, and notices about the user's own choices."""

    values: Mapping[str, Value]
    findings: tuple[Notice, ...] = ()
    files: Mapping[str, str] = MappingProxyType({})
    """Path → text of what values refer to; written below the cache before vLLM starts."""
    uses: tuple[Use, ...] = ()
    """How the memory of each serving device is used."""


class Thresholds(NamedTuple):
    """The profile's thresholds: the numbers that decisions use."""

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
    """Format bytes as GiB with one decimal."""
    return f"{size / GIB:.1f} GiB"


def does_not_fit(message: str, hint: str) -> EntrypointError:
    """Return the error for a model that is too large for the available memory."""
    return EntrypointError(DOES_NOT_FIT, message, hint)
