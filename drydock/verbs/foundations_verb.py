"""The verb `foundations`."""

from __future__ import annotations

from drydock.cli.task_helpers import foundations_of, here, write_result
from drydock.cli.verb import Verb
from drydock.model.shared_options import PruneOptions, SharedFoundations


class FoundationsOptions(PruneOptions, SharedFoundations):
    """Which foundations are listed or deleted."""

    keep: str = ""
    """REVISION or REVISION..REVISION: also keep what the locks at REVISION need"""
    prune: bool = False
    """list only what no lock needs"""
    yes: bool = False
    """with --prune: delete it"""


@Verb
def list_foundations(options: FoundationsOptions) -> None:
    """List the foundations in a registry, and which rows need them."""
    from drydock.publish import foundation_use

    options.check_prune()
    where = foundations_of(options.registry, "--registry")
    repository, shared = foundation_use.list_shared_foundations(here(), where, options.keep, insecure=options.insecure)
    shared = foundation_use.prune_foundations(repository, shared, yes=options.yes) if options.prune else shared
    write_result({"foundations": shared}, foundation_use.format_uses(shared), json=options.json)
