"""The verb `bump`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from drydock.cli.task_helpers import here, report_written
from drydock.cli.verb import Verb
from drydock.core.errors import DrydockError, raise_all_errors
from drydock.core.project import Project
from drydock.model.shared_options import JsonOption, RowOption


class BumpOptions(RowOption, JsonOption):
    """Which row takes which version."""

    vllm: str = ""
    """first write this version of vLLM into the stack, such as 0.32.1"""


@Verb
def bump_row(options: BumpOptions) -> None:
    """Lock and render a variant and those that inherit its stack, and write docs and CI files: after a new version."""
    written, errors = update_rows(here(), options)
    report_written(written, json=options.json)
    raise_all_errors(errors)


def update_rows(project: Project, options: BumpOptions) -> tuple[list[Path], list[DrydockError]]:
    """Set vLLM's version if one is named, and write all that follows; return the files that changed, and the errors.

    Raises TargetError, or InputError for a version that cannot be set: then nothing is written.
    """
    from drydock.ci import workflow
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.config.stack_files import list_stack_files
    from drydock.lock.stack_version import find_version_file, set_version
    from drydock.pages import docs
    from drydock.upgrade.row_record_file import lock_and_render

    project.check_writable("templates")
    variants = read_matrix(project)
    variant = find_variant(variants, options.target)
    if options.vllm:
        file = find_version_file(project, variant)
        rows = [item for item in variants if find_version_file(project, item) == file]
        changed_paths = set_version(project, variant, file, rows, options.vllm)
    else:
        file = list_stack_files(project, variant)[0]
        rows, changed_paths = [item for item in variants if file in list_stack_files(project, item)], []

    # The rows again, with the version that is written now.
    variants, errors = read_matrix(project), list[DrydockError]()
    steps = [partial(lock_and_render, project, find_variant(variants, row.id), errors) for row in rows]
    if not project.below:
        steps.append(partial(docs.write, project, variants))
    if not project.below or workflow.list_present_workflows(project):
        steps.append(partial(workflow.write, project, variants))
    for step in steps:  # each, whatever fails: what could be written is
        try:
            changed_paths += step()
        except DrydockError as error:
            errors.append(error)
    return changed_paths, errors
