"""Precedence of settings, the same on the build side and the image side. Pure.

default → accelerator → stack → variant → decision → recipe → the project's own stack and variant → recommendation →
environment → command line. The later layer wins. The values it overrides are kept, so that each value can be traced to
its origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

DEFAULT = "default"
ACCELERATOR = "accelerator"
STACK = "stack"
VARIANT = "variant"
DECISION = "decision"
RECIPE = "recipe"
"""A published recipe of vLLM for the model."""
OWN_STACK, OWN_VARIANT = "project's stack", "project's variant"
"""A stack or a row that a project wrote itself, and not drydock: it knows its own machines better than a recipe."""
OWN = (OWN_STACK, OWN_VARIANT)
RECOMMENDATION = "recommendation"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"

ORDER = (
    *(DEFAULT, ACCELERATOR, STACK, VARIANT, DECISION, RECIPE, *OWN),
    *(RECOMMENDATION, ENVIRONMENT, COMMAND_LINE),
)
"""Every origin, weakest first."""


class Chosen(NamedTuple):
    """A value, its origin, and the values of weaker layers that it overrides (strongest first)."""

    value: Any
    origin: str
    overridden: tuple[tuple[str, Any], ...] = ()


def merge_setting_layers(layers: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Chosen]:
    """Merge (origin, values) layers key by key.

    The origin that comes last in ORDER wins, in whatever order the layers are passed. Raises KeyError for an origin
    that is not in ORDER.
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
