"""The verb `bump`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drydock.cli.task_helpers import here, report_written
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.errors import DrydockError, raise_all_errors
from drydock.core.files import format_json
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.model.shared_options import DryRunInCopyOption, JsonOption, RowOption

if TYPE_CHECKING:
    from drydock.compare.bump_report import BumpReport
    from drydock.model.variant import Variant


class BumpOptions(DryRunInCopyOption, RowOption, JsonOption):
    """Which row takes which version."""

    vllm: str = ""
    """first write this version of vLLM into the stack, such as 0.32.1; another minor version gets a new row"""


class RowsUpdate(NamedTuple):
    """What `bump` did."""

    files: list[Path]
    """What changed."""
    errors: list[DrydockError]
    report: str = ""
    """What a new version changes; empty without one."""


@Verb
def bump_row(options: BumpOptions) -> None:
    """Lock and render a variant and those that inherit its stack, and write all that follows: after a new version.

    With --vllm, print what the new version changes.
    """
    update = update_rows(here(), options)
    if options.json:
        names = [here().name_of(path) for path in update.files]
        write_output(format_json({"wrote": names, "report": update.report}))
    else:
        report_written(update.files)
        write_output(update.report)
    raise_all_errors(update.errors)


def update_rows(project: Project, options: BumpOptions) -> RowsUpdate:
    """Set vLLM's version if one is named, and write all that follows.

    Raises TargetError, or InputError for a version that cannot be set: then nothing is written.
    """
    from drydock.compare import bump_report
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.config.stack_files import list_stack_files
    from drydock.lock.stack_version import VersionChange, check_files, find_version_file, set_version
    from drydock.upgrade.row_record_file import list_served_words, lock_and_render

    project.check_writable("templates")
    variants = read_matrix(project)
    variant = find_variant(variants, options.target)

    # The version, and what was known of the old one before it is written.
    file = find_version_file(project, variant) if options.vllm else list_stack_files(project, variant)[0]
    rows = {row.id: row for row in variants if _has_file(project, row, file, says_version=bool(options.vllm))}
    change, before = VersionChange([], {row: row for row in rows}), None
    if options.vllm:
        check_files(project, file, [*rows.values()], options.vllm)
        before = bump_report.look_at_rows(project, rows, variant)
        change = set_version(project, variant, file, [*rows.values()], options.vllm)

    # Locks and Dockerfiles. The rows again, with the version that is written now.
    variants = read_matrix(project)
    new_rows = {old: find_variant(variants, new) for old, new in change.rows.items()}
    files, errors = [*change.files], list[DrydockError]()
    locks = {new_rows[old].id: lock for old, lock in before.locks.items() if new_rows[old].id != old} if before else {}
    steps: list[Callable[[], list[Path]]] = [
        partial(lock_and_render, project, row, errors, locks) for row in new_rows.values()
    ]
    _run_steps(steps, files, errors)

    # What follows: sources of facts, recipes, pages, CI files, expected plans.
    report = None
    if before:
        report = bump_report.make_report(project, before, new_rows, list_served_words(project))
        plans = bump_report.compare_host_plans(project, before, new_rows)
        recipe_files, recipes = _take_recipes(project)
        report = report._replace(plans=plans, recipes=recipes)
        if project.root == ROOT:
            report = _ask_rules(project, report, before.variant, new_rows[before.variant.id])
        files += [*report.files, *recipe_files]
    _run_steps(_list_page_steps(project), files, errors)
    if report is None:
        return RowsUpdate(files, errors)
    unlocked = tuple(problem for error in errors for problem in error.problems)
    report = report._replace(not_asked=(*report.not_asked, *unlocked))
    return RowsUpdate(files, errors, bump_report.format_report(report))


def _has_file(project: Project, row: Variant, file: Path, *, says_version: bool) -> bool:
    """Return whether a row inherits a stack's file, or has the version of its vLLM from it."""
    from drydock.config.stack_files import list_stack_files
    from drydock.lock.stack_version import find_version_file

    return find_version_file(project, row) == file if says_version else file in list_stack_files(project, row)


def _run_steps(steps: Iterable[Callable[[], list[Path]]], files: list[Path], errors: list[DrydockError]) -> None:
    """Run each step, whatever fails: what could be written is."""
    for step in steps:
        try:
            files += step()
        except DrydockError as error:
            errors.append(error)


def _ask_rules(project: Project, report: BumpReport, old: Variant, new: Variant) -> BumpReport:
    """Ask the new version about the examples of drydock's rules; return the report with what it says."""
    from drydock.config.matrix import read_matrix
    from drydock.lock.ask_rules import FILES, ask_wheel, list_changed_refusals
    from drydock.lock.lockfile import path_of_lock, read_previous
    from drydock.lock.vllm_lists import fetch_vllm

    lock = read_previous(path_of_lock(project, new.id))
    images = [f"drydock/{row.id}" for row in read_matrix(project) if row.accelerator == "cpu"]
    problem = "its row is not locked"
    try:
        problem = ask_wheel(images, fetch_vllm(new, lock)) if lock else problem
    except DrydockError as error:
        problem = error.problems[0]
    if problem:
        return report._replace(not_asked=(*report.not_asked, f"refusals of vLLM {new.vllm.version}: {problem}"))
    refusals = tuple(list_changed_refusals(old.vllm.version, new.vllm.version))
    return report._replace(refusals=refusals, answers=FILES)


def _take_recipes(project: Project) -> tuple[list[Path], str]:
    """Take the newest published recipes, if the project has any of its own; return the files, and what changed."""
    from drydock.compare.recipe_plans import format_update
    from drydock.lock.recipes.recipes_lock import FACTS
    from drydock.verbs.recipes_verb import RecipesOptions, update_recipes

    if not (project.root / FACTS).is_file():
        return [], ""
    try:
        update = update_recipes(project, RecipesOptions())
    except DrydockError as error:
        return [], f"not taken: {error.problems[0]}\n"
    return [*update.files], format_update(update, project)


def _list_page_steps(project: Project) -> list[Callable[[], list[Path]]]:
    """Return the steps that write what is made of rows: in a checkout of drydock all that is generated."""
    from drydock.ci import workflow
    from drydock.config.matrix import read_matrix
    from drydock.development import quality
    from drydock.pages import docs

    variants = read_matrix(project)
    if project.root == ROOT:
        return [partial(quality.update_generated_files, ROOT)]
    pages = [] if project.below else [partial(docs.write, project, variants)]
    has_workflows = not project.below or workflow.list_present_workflows(project)
    return [*pages, *([partial(workflow.write, project, variants)] if has_workflows else [])]
