"""Compares two records, each as a table of name → value. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


def find_differences(
    old: Mapping[Name, Value], new: Mapping[Name, Value]
) -> Iterator[tuple[Name, Value | None, Value | None]]:
    """Yield each name whose value differs, with the old and the new value; None: that record does not have it.

    Names come in the order of the records, the old one first.
    """
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)
