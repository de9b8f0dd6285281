"""The verb `project upgrade`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from drydock.cli import version
from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.console import log, name_program, write_output
from drydock.core.errors import DrydockError, InputError, StaleError, raise_all_errors
from drydock.core.files import write_atomically
from drydock.core.project import Project
from drydock.model.shared_options import JsonOption


class ProjectUpgradeOptions(JsonOption):
    """What an upgrade does."""

    write: bool = False
    """write it: locks, Dockerfiles and upgrade.json of these rows, CI files, requirements.txt and schemas"""


@Verb
def upgrade_project(options: ProjectUpgradeOptions) -> None:
    """Show what this drydock changes in a project that an older one made: pins, Dockerfiles, plans, CI files."""
    upgrade_rows(here(), options)


def upgrade_rows(project: Project, options: ProjectUpgradeOptions) -> None:
    """Print what this drydock changes in a project's rows, or write it.

    Raises StaleError if something changes and is not written, InputError for a project of a newer drydock.
    """
    from drydock.ci import ci_requirements, own_wheel
    from drydock.config.matrix import read_matrix
    from drydock.projects import stale_files
    from drydock.upgrade import row_changes, row_record_file

    if not project.below:
        text = f"upgrade: {project.root} is drydock itself, which has no rows that an older drydock made"
        raise InputError(text, hint="run it in a project, or name one: `./inv --project DIR upgrade`")
    notes = row_changes.list_project_notes(project)
    if not options.json:  # before the rows: a note may say why these cannot be read any more
        write_output(row_changes.format_notes(notes))
    variants = read_matrix(project)
    compared = row_changes.Compared(
        notes,
        tuple(row_changes.compare_rows(project, variants)),
        row_changes.find_gone_rows(project, variants),
        ci_requirements.find_problems(project),
        tuple(project.name_of(path) for path in stale_files.render_outdated_copies(project, variants)),
    )

    changed_paths, errors = list[Path](), list[DrydockError]()
    if options.write:
        for variant in variants:
            if row_record_file.has_files(project, variant.id):
                with _collect_error(errors):
                    changed_paths += row_changes.write_upgraded_row(project, variant, errors)
        with _collect_error(errors):
            if compared.requirements:
                changed_paths += ci_requirements.write_requirements(project, own_wheel.find_own_wheel())
        with _collect_error(errors):  # after the rows: CI files depend on their locks
            for path, text in stale_files.render_outdated_copies(project, variants).items():
                changed_paths += [path] if write_atomically(path, text) else []
        stale_files.report_stale_files(project)

    written = {"wrote": [project.name_of(path) for path in changed_paths]} if options.write else {}
    write_result(
        {"version": version.read_own_version(), **compared._asdict(), **written},
        name_program(row_changes.format_row_changes(compared)),
        json=options.json,
    )
    if options.write:
        log("\n".join(f"wrote {name}" for name in written["wrote"]) or "nothing to do")
        raise_all_errors(errors)
    elif compared.changed:
        text = f"this drydock changes {', '.join(compared.changed)}"
        raise StaleError(text, hint="`./inv project upgrade --write` writes it")


@contextlib.contextmanager
def _collect_error(errors: list[DrydockError]) -> Iterator[None]:
    """Add an error of the block to others, so that the rest is written."""
    try:
        yield
    except DrydockError as error:
        errors.append(error)
