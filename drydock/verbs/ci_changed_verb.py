"""The verb `ci changed`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import JsonOption, RowOrAllOption


class CiChangedOptions(RowOrAllOption, JsonOption):
    """What counts as changed."""

    since: str
    """compare with this commit; if it is empty or unknown, everything counts as changed"""
    only: str = "changed"
    """changed, all, or a variant to build whether it changed or not"""
    github: bool = False
    """print a line for $GITHUB_OUTPUT"""
    large: str = ""
    """architectures whose runners have disk for every variant, such as amd64 [default: none]"""


@Verb
def list_changed_rows(options: CiChangedOptions) -> None:
    """Print the variants whose inputs changed since a commit, of those that CI builds."""
    from drydock.ci import changed

    selection = changed.Selection(options.target, options.only, options.large)
    write_output(
        changed.format_changed_rows(here(), options.since, selection, json=options.json, github=options.github)
    )
