"""The verb `recipes`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.console import log
from drydock.core.errors import StaleError
from drydock.core.files import parse_any_json
from drydock.core.project import Project
from drydock.model.shared_options import DryRunInCopyOption, JsonOption

if TYPE_CHECKING:
    from drydock.compare.recipe_plans import RecipesUpdate


class RecipesOptions(DryRunInCopyOption, JsonOption):
    """Where recipes are taken from."""

    from_: str = ""
    """REPOSITORY@COMMIT, a FOLDER of recipes, or FOLDER@COMMIT for a clone [default: drydock.yaml's]"""
    root: str = ""
    """folder of recorded hosts whose plans are compared [default: those that come with drydock]"""


@Verb
def take_recipes(options: RecipesOptions) -> None:
    """Take the newest published recipes of vLLM, and show which plans of recorded hosts change."""
    from drydock.compare import recipe_plans

    update = update_recipes(here(), options)
    write_result(
        update._asdict() | {"files": [here().name_of(path) for path in update.files]},
        recipe_plans.format_update(update, here()),
        json=options.json,
    )


def update_recipes(project: Project, options: RecipesOptions) -> RecipesUpdate:
    """Read recipes, write their facts and lock, and compare plans.

    Raises InputError and FetchError; then nothing is written.
    """
    from drydock.compare.recipe_plans import (
        NO_RECIPE,
        RecipesUpdate,
        compare_recipe_plans,
        list_recipe_questions,
        make_recipe_plans,
    )
    from drydock.lock.recipes import recipe_files, recipes_lock
    from drydock.topology.init import find_hosts
    from drydock.topology.size import list_recorded_machines

    project.check_writable(recipes_lock.LOCK)
    recipes = recipe_files.read_source(project, options.from_)
    models, skipped = recipes_lock.make_facts(recipes)
    try:
        old_models: Mapping[str, Any] = parse_any_json(recipes_lock.read_facts(project)).get("models", {})
        is_readable = True
    except StaleError as error:  # then plans are compared with those without any recipe
        log(str(error))
        old_models, is_readable = {}, False
    changed = sorted(
        (name for name in {*models, *old_models} if models.get(name) != old_models.get(name)),
        key=lambda name: (name not in models, name),
    )
    if options.root:
        find_hosts(Path(options.root))  # an error before anything is written

    questions = list_recipe_questions(list_recorded_machines(project, options.root), changed) if is_readable else []
    old = make_recipe_plans(project, questions)
    files = recipes_lock.write_recipes(project, recipes)
    if not is_readable:  # until now nothing could be planned, nor a row be chosen for a host
        questions = list_recipe_questions(list_recorded_machines(project, options.root), changed)
        old = make_recipe_plans(project, questions, NO_RECIPE)
    plans = compare_recipe_plans(questions, old, make_recipe_plans(project, questions))
    return RecipesUpdate((*files,), recipes.commit, recipes.date, (*changed,), (*plans,), skipped)
