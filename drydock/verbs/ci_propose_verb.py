"""The verb `ci propose`."""

from __future__ import annotations

from typing import Literal

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.verb_options import VerbOptions

CiFormat = Literal["github", "gitlab"]


class CiProposeOptions(VerbOptions):
    """What is proposed, and where."""

    format: CiFormat
    """github or gitlab"""
    unlocked: bool = False
    """lock variants that are not locked, where this machine can"""
    recipes: bool = False
    """take newer published recipes of vLLM instead"""


@Verb
def propose_update(options: CiProposeOptions) -> None:
    """Lock the variants that have drifted, push a branch and open a pull or merge request."""
    from drydock.projects import proposal

    propose = proposal.propose_first if options.unlocked else proposal.propose_locks
    propose = proposal.propose_recipes if options.recipes else propose
    write_output(propose(here(), proposal.read_ci_server(options.format)))
