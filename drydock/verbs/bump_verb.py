"""The verb `bump`."""

from __future__ import annotations

from drydock.cli.task_helpers import here, report_written
from drydock.cli.verb import Verb
from drydock.model.shared_options import JsonOption, RowOption


class BumpOptions(RowOption, JsonOption):
    """Which row takes which version."""

    vllm: str = ""
    """first write this version of vLLM into the stack, such as 0.32.1"""


@Verb
def bump_row(options: BumpOptions) -> None:
    """Lock and render a variant and those that inherit its stack, and write docs and CI files: after a new version."""
    from drydock.projects import update

    written, errors = update.update_row(here(), options.target, options.vllm)
    report_written(written, json=options.json)
    update.raise_all_errors(errors)
