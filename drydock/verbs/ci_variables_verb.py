"""The verb `ci variables`."""

from __future__ import annotations

from typing import Literal

from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.verb_options import VerbOptions

CiFormat = Literal["github", "gitlab"]


class CiVariablesOptions(VerbOptions):
    """Whose variables are listed or checked."""

    format: CiFormat
    """github or gitlab"""
    registry: str = ""
    """with --check: host and path that the release would be published to"""
    check: bool = False
    """print nothing; fail if this environment lacks a variable that a release needs"""


@Verb
def list_ci_variables(options: CiVariablesOptions) -> None:
    """Print the commands that set the CI server's variables, or check that a release has those it needs."""
    from drydock.ci import ci_variables

    if options.check:
        ci_variables.check_release_variables(options.format, options.registry)
    else:
        write_output(ci_variables.format_all_variables(options.format))
