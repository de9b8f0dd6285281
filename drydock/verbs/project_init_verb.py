"""The verb `project init`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drydock.cli.verb import Verb
from drydock.core.console import spell_commands, write_output
from drydock.core.files import format_json
from drydock.model.shared_options import JsonOption


class ProjectInitOptions(JsonOption):
    """Where a project is made."""

    folder: str
    """folder of the project, which is made if it is missing"""
    ci: Literal["github", "gitlab", "none"] = "github"
    """CI files: github, gitlab or none"""


@Verb
def make_project(options: ProjectInitOptions) -> None:
    """Write a small project of your own, whose rows and settings lie over drydock's."""
    from drydock.projects import init_verb

    project = init_verb.init_project(Path(options.folder), options.ci)
    if options.json:
        files = [str(path) for path in project.files]
        write_output(format_json({"wrote": files, "next": [*map(spell_commands, project.commands)]}))
    else:
        write_output(spell_commands(init_verb.report_project(project)))
