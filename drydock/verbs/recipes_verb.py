"""The verb `recipes`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.shared_options import JsonOption


class RecipesOptions(JsonOption):
    """Where recipes are taken from."""

    from_: str = ""
    """REPOSITORY@COMMIT, a FOLDER of recipes, or FOLDER@COMMIT for a clone [default: drydock.yaml's]"""
    root: str = ""
    """folder of recorded hosts whose plans are compared [default: those that come with drydock]"""


@Verb
def take_recipes(options: RecipesOptions) -> None:
    """Take the newest published recipes of vLLM, and show which plans of recorded hosts change."""
    from drydock.projects import recipes_update

    update = recipes_update.update_recipes(here(), options.from_, options.root)
    write_output(
        format_json(recipes_update.dump_recipes_update(update, here()))
        if options.json
        else recipes_update.format_update(update, here())
    )
