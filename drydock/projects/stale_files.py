"""Committed files that no longer match the matrix and the locks, and what writes them. IO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from drydock.ci import workflow
from drydock.config.matrix import read_matrix
from drydock.core.console import log
from drydock.core.errors import InputError, StaleError
from drydock.core.project import Project
from drydock.lock import lockfile
from drydock.model.variant import Variant
from drydock.pages import docs
from drydock.projects import new_project
from drydock.upgrade import row_record_file

MOST_NAMES = 5
"""Files that one line names."""


def report_stale_files(project: Project) -> tuple[str, ...]:
    """Log which committed files no longer match the matrix and the locks, and what writes them; return the files."""
    stale_files: list[str] = []
    for command, files in _list_stale_files(project):
        if files:
            more = f" and {len(files) - MOST_NAMES} more" if len(files) > MOST_NAMES else ""
            log(f"stale now: {', '.join(files[:MOST_NAMES])}{more}: run `./inv {command}`")
        stale_files += files
    return tuple(stale_files)


def _list_stale_files(project: Project) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each command with the files that it must write. The CI files follow from locks that are current."""
    variants = read_matrix(project)
    old = [variant for variant in variants if lockfile.list_lock_problems(project, variant)]
    for variant in old:
        yield f"lock --target {variant.id}", [f"images/{variant.id}/lock.json"]
    rendered: list[str] = []
    for variant in variants:
        if variant not in old:
            lock = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
            rendered += _list_outdated_files(project, partial(row_record_file.check_row_files, project, variant, lock))
    yield "render", rendered
    if not (project.below or project.is_installed):
        yield "docs", _list_outdated_files(project, lambda: docs.check_pages(project, variants))
    if not old and workflow.list_present_workflows(project):
        yield "ci", _list_outdated_files(project, lambda: workflow.check_workflows(project, variants))


def render_outdated_copies(project: Project, variants: Sequence[Variant]) -> dict[Path, str]:
    """Return path → text of a project's CI files and schemas that this drydock writes otherwise.

    A project without one of them has none, so it is not written. Needs locks that are current.
    """
    texts = workflow.render_all_workflows(project, variants) if workflow.list_present_workflows(project) else {}
    texts |= {project.root / name: text for name, text in new_project.read_schemas().items()}
    return {path: text for path, text in texts.items() if path.is_file() and path.read_bytes() != text.encode()}


def _list_outdated_files(project: Project, check: Callable[[], None]) -> Sequence[str]:
    """Return the files that a check finds outdated."""
    try:
        check()
    except StaleError as error:
        return [project.name_of(Path(problem.partition(": ")[0])) for problem in error.problems]
    except InputError as error:  # such as a recorded host that cannot be read: no reason to end what has succeeded
        log(f"warning: not checked: {error.problems[0]}")
    return ()
