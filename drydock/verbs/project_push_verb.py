"""The verb `project push`."""

from __future__ import annotations

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.model.shared_options import DryRunOption, InsecureOption, JsonOption, SignOptions


class ProjectPushOptions(DryRunOption, SignOptions, InsecureOption, JsonOption):
    """Where a project is published."""

    name: str
    """REGISTRY/NAME, with or without :TAG"""


@Verb
def push_project(options: ProjectPushOptions) -> None:
    """Publish your project's rows and files, and print the line with which other projects take them by digest."""
    from drydock.attest.cosign import choose_signer
    from drydock.publish import project_push

    signer = choose_signer(options, insecure=options.insecure)
    pushed = project_push.push_project(here(), options.name, signer, insecure=options.insecure, dry_run=options.dry_run)
    write_result(pushed, project_push.format_from_line(pushed), json=options.json)
