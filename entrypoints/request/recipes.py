"""What a published recipe sets for a model on this host, and what the user said of recipes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from entrypoints.core.records import Notice, Value

NO_RECIPE, FEATURE = "--no-recipe", "--recipe-feature"
RECIPE_FLAGS = {
    NO_RECIPE: ("", "Use no published recipe for this model"),
    FEATURE: ("NAME", "Use this feature of the model's recipe, such as spec_decoding; repeatable"),
}
"""Flag → the name of its value, and its help text."""


class RecipeChoice(NamedTuple):
    """What the user said of recipes."""

    off: bool = False
    features: tuple[str, ...] = ()


class Recipe(NamedTuple):
    """The settings of a recipe for this host, already within the limits of recipes and of this vLLM."""

    name: str = ""
    flags: Mapping[str, Value] = MappingProxyType({})
    """`--no-NAME` is the flag's name with the value False."""
    env: Mapping[str, Value] = MappingProxyType({})
    notices: tuple[Notice, ...] = ()


NOTHING_PUBLISHED = Recipe()


def parse_choice(values: Mapping[str, str]) -> RecipeChoice:
    """Parse drydock's flags about recipes."""
    return RecipeChoice(NO_RECIPE in values, tuple(filter(None, values.get(FEATURE, "").split(","))))
