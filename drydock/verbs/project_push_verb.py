"""The verb `project push`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.model.shared_options import InsecureOption, JsonOption, SignOptions


class ProjectPushOptions(SignOptions, InsecureOption, JsonOption):
    """Where a project is published."""

    name: str
    """REGISTRY/NAME, with or without :TAG"""


@Verb
def push_project(options: ProjectPushOptions) -> None:
    """Publish your project's rows and files, and print the line with which other projects take them by digest."""
    from drydock.attest.cosign import choose_signer
    from drydock.publish import project_push

    signer = choose_signer(options, insecure=options.insecure)
    pushed = project_push.push_project(here(), options.name, signer, insecure=options.insecure)
    write_output(format_json(dump_record(pushed)) if options.json else project_push.format_from_line(pushed))
