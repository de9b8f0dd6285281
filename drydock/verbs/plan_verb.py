"""The verb `plan`."""

from __future__ import annotations

from drydock.cli.verb import Verb
from drydock.verbs.entrypoint_verb import ModelOfRowOptions, exec_image_verb, list_image_words


@Verb
def plan_row(options: ModelOfRowOptions) -> None:
    """Print what serve would run with a row: parallelism, length, flags, variables, and why. Flags follow --."""
    exec_image_verb(options, "plan", *list_image_words(options))
