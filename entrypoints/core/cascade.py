"""One rule of precedence for build side and image side alike. Pure.

default → accelerator → stack → variant → decision → environment → command line: the later layer wins, and what it
overrode stays visible, so that every value can be traced to who chose it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

DEFAULT = "default"
ACCELERATOR = "accelerator"
STACK = "stack"
VARIANT = "variant"
DECISION = "decision"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"

ORDER = (DEFAULT, ACCELERATOR, STACK, VARIANT, DECISION, ENVIRONMENT, COMMAND_LINE)
"""Every origin, weakest first."""


class Chosen(NamedTuple):
    """A value, the layer it came from, and the weaker layers' values that it overrode (strongest first)."""

    value: Any
    origin: str
    overridden: tuple[tuple[str, Any], ...] = ()


def cascade(layers: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Chosen]:
    """Merge (origin, values) layers, key by key; the last origin in ORDER that has a key wins, in any order given.

    Raises KeyError for an origin that is not in ORDER.
    """
    ranked = sorted(layers, key=lambda layer: _RANK[layer[0]])
    chosen: dict[str, Chosen] = {}
    for origin, values in ranked:
        for key, value in values.items():
            previous = chosen.get(key)
            overridden = ((previous.origin, previous.value), *previous.overridden) if previous else ()
            chosen[key] = Chosen(value, origin, overridden)
    return chosen


_RANK = {origin: rank for rank, origin in enumerate(ORDER)}
