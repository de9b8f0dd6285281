"""The verb `project upgrade`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.model.shared_options import JsonOption


class ProjectUpgradeOptions(JsonOption):
    """What an upgrade does."""

    write: bool = False
    """write it: locks, Dockerfiles and upgrade.json of these rows"""


@Verb
def upgrade_project(options: ProjectUpgradeOptions) -> None:
    """Show what this drydock changes in the rows of a project that an older one made: pins, Dockerfile, plans."""
    from drydock.projects import upgrade

    upgrade.upgrade_project(here(), write=options.write, json=options.json)
