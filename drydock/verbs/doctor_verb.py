"""The verb `doctor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.console import name_program
from drydock.core.errors import DrydockError
from drydock.core.project import Project
from drydock.model.shared_options import JsonOption

if TYPE_CHECKING:
    from drydock.build.doctor_questions import Diagnosis
    from drydock.model.variant import Variant


class DoctorOptions(JsonOption):
    """What is asked."""

    target: str = ""
    """ask only what this row, alias or accelerator needs"""


@Verb
def examine_machine(options: DoctorOptions) -> None:
    """Ask engine, disk, mirrors and each server that a build needs, in ten seconds, and say what to do."""
    from drydock.build import doctor_questions
    from drydock.config.matrix import find_variant, read_matrix

    answers = ask_machine(here(), find_variant(read_matrix(here()), options.target) if options.target else None)
    write_result({"checks": answers}, name_program(doctor_questions.format_diagnoses(answers)), json=options.json)
    sys.exit(doctor_questions.choose_exit_code(answers))


def ask_machine(
    project: Project, variant: Variant | None, env: Mapping[str, str] = os.environ
) -> tuple[Diagnosis, ...]:
    """Return the answers to all questions, for what one variant needs or else for what most do."""
    from drydock.build import doctor_questions
    from drydock.build.doctor_questions import WARN, Question

    pins = doctor_questions.read_pins(project, variant) if variant else None
    dates: list[tuple[float, str]] = []
    try:
        questions = [*doctor_questions.list_machine_questions(pins, env)]
        if project.below:
            questions.append(Question("project", lambda: check_project_pins(project), WARN))
        questions += doctor_questions.list_server_questions(variant, pins, env, dates)
    except DrydockError as error:  # the configuration itself
        return (doctor_questions.make_failed_diagnosis(Question("configuration", str), error),)
    return (*doctor_questions.ask_at_once(questions), doctor_questions.check_clock(dates))


def check_project_pins(project: Project) -> str:
    """Return which drydock CI installs. Raises StaleError for another one than this."""
    from drydock.ci import ci_requirements

    ci_requirements.check_requirements(project)
    return f"{project.root}: CI installs this drydock, by its hash"
