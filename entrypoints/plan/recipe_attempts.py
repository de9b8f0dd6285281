"""A plan with a recipe, and without what of it does not fit. Pure."""

from __future__ import annotations

from collections.abc import Callable

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import ServePlan
from entrypoints.request.flags import TENSOR
from entrypoints.request.recipes import Recipe
from entrypoints.request.vllm_flags import Flag, UserFlags


def apply_recipe(recipe: Recipe, user_flags: UserFlags) -> UserFlags:
    """Return the flags and variables as decisions see them: the recipe's as if the user had set them."""
    flags = {
        name: Flag(name, value.value, f"{name} {value.value}, of the recipe") for name, value in recipe.flags.items()
    }
    env = {name: str(value.value) for name, value in recipe.env.items()}
    return user_flags._replace(flags={**flags, **user_flags.flags}, env={**env, **user_flags.env})


def plan_with_recipe(user_flags: UserFlags, attempt: Callable[[UserFlags], ServePlan]) -> ServePlan:
    """Return the first plan that can be made: with the recipe, without its lengths and memory, without all it sets.

    Raises the error of the plan without the recipe if there is none.
    """
    recipe, problem = user_flags.recipe, ""
    for fewer in _list_attempts(recipe):
        try:
            return attempt(user_flags._replace(recipe=_with_notice(fewer, recipe, problem)))
        except EntrypointError as error:
            problem = error.message
    return attempt(user_flags._replace(recipe=Recipe()))


def _with_notice(fewer: Recipe, recipe: Recipe, problem: str) -> Recipe:
    """Return a part of a recipe that says what is left out, and for which problem."""
    left_out = sorted({*recipe.flags, *recipe.env} - {*fewer.flags, *fewer.env})
    if not left_out:
        return fewer
    omission = f"{', '.join(left_out)}: {problem}"
    return fewer._replace(notices=(*fewer.notices, make_notice("PLAN-167", omission, "what fits", recipe=recipe.name)))


def _list_attempts(recipe: Recipe) -> list[Recipe]:
    """Return the recipe, and less and less of it, without attempts that are alike."""
    from entrypoints.request.recipe_limits import SIZES  # only a plan with a recipe needs its tables

    smaller = recipe._replace(
        flags={name: value for name, value in recipe.flags.items() if name not in {*SIZES, TENSOR}},
        env={name: value for name, value in recipe.env.items() if name not in SIZES},
    )
    nothing = recipe._replace(flags={}, env={})
    attempts = [recipe]
    for fewer in (smaller, nothing):
        if (fewer.flags.keys(), fewer.env.keys()) != (attempts[-1].flags.keys(), attempts[-1].env.keys()):
            attempts.append(fewer)
    return attempts
