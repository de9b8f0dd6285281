"""The verb `doctor`."""

from __future__ import annotations

import sys

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.console import spell_commands, write_output
from drydock.core.files import format_json
from drydock.model.shared_options import JsonOption


class DoctorOptions(JsonOption):
    """What is asked."""

    target: str = ""
    """ask only what this variant id, alias or accelerator needs"""


@Verb
def examine_machine(options: DoctorOptions) -> None:
    """Ask engine, disk, mirrors and each server that a build needs, in ten seconds, and say what to do."""
    from drydock.projects import doctor

    answers = doctor.examine_machine(
        here(), find_variant(read_matrix(here()), options.target) if options.target else None
    )
    if options.json:
        write_output(format_json({"checks": [answer._asdict() for answer in answers]}))
    else:
        write_output(spell_commands(doctor.format_diagnoses(answers)))
    sys.exit(doctor.choose_exit_code(answers))
