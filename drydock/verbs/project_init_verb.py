"""The verb `project init`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drydock.cli.verb import Verb
from drydock.core.console import log, name_program, write_output
from drydock.core.errors import DrydockError
from drydock.core.files import format_json
from drydock.model.shared_options import DryRunOption, JsonOption

if TYPE_CHECKING:
    from drydock.projects.new_project import NewProject


class ProjectInitOptions(DryRunOption, JsonOption):
    """Where a project is made."""

    folder: str
    """folder of the project, which is made if it is missing"""
    ci: Literal["github", "gitlab", "none"] = "github"
    """CI files: github, gitlab or none"""


@Verb
def make_project(options: ProjectInitOptions) -> None:
    """Write a small project of your own, whose rows and settings lie over drydock's."""
    from drydock.projects import new_project

    project = init_project(options)
    if options.json:
        files = [str(path) for path in project.files]
        write_output(
            format_json(
                {"would_write" if options.dry_run else "wrote": files, "next": [*map(name_program, project.commands)]}
            )
        )
    else:
        write_output(name_program(new_project.report_project(project, dry_run=options.dry_run)))


def init_project(options: ProjectInitOptions) -> NewProject:
    """Write a project into a folder, with the wheel of this drydock for its CI.

    Without that wheel it says why, and how to add it. Raises what `write_new_project` raises.
    """
    from drydock.ci import own_wheel, workflow
    from drydock.projects import new_project

    try:
        wheel = own_wheel.find_own_wheel()
    except DrydockError as error:
        wheel = None
        log(f"warning: {workflow.REQUIREMENTS} names no drydock, so CI stops at its first command: {error.problems[0]}")
        log(f"hint: {error.hint or 'run `./inv project upgrade --write` in the project later'}")
    return new_project.write_new_project(Path(options.folder), options.ci, wheel, dry_run=options.dry_run)
