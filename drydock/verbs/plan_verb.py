"""The verb `plan`."""

from __future__ import annotations

from drydock.cli.task_helpers import after_dashes, here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.verbs.entrypoint_verb import ModelOfRowOptions, exec_image_verb, list_image_words


class PlanOptions(ModelOfRowOptions):
    """A row with the model that it would serve, and another host to compare with."""

    diff: str = ""
    """recorded host, such as of another machine type: print what its plan changes from that of --root, and why"""


@Verb
def plan_row(options: PlanOptions) -> None:
    """Print what serve would run with a row: parallelism, length, flags, variables, and why. Flags follow --."""
    words = list_image_words(options)
    if not options.diff:
        exec_image_verb(options, "plan", *words)
        return
    from drydock.inputs.model_images import replace_model_address
    from drydock.run.entrypoint import compare_plans

    words = replace_model_address((*after_dashes(), *words))
    write_output(compare_plans(here(), options.target, (options.root, options.diff), words, options.env))
