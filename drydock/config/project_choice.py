"""Which project a command is about. IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from drydock.config.strict_yaml import read_yaml
from drydock.config.validation import validate_document
from drydock.core.errors import InputError
from drydock.core.files import has_file
from drydock.core.paths import PROJECT_OPTION, PROJECT_VARIABLE, ROOT
from drydock.core.project import LOWEST, Project
from drydock.model.project_record import ProjectFile

DRYDOCK = Project(ROOT)
"""drydock's own files."""
PROJECT_FILE = "drydock.yaml"
READ = (
    *(PROJECT_FILE, "matrix.yaml", "templates", "entrypoints", "images", "policy", "hosts", "requirements.txt"),
    *(".github/workflows/drydock.yml", ".gitlab-ci.yml"),
)
"""What drydock reads of a project's root by a fixed name. Other files are named in these."""


def find_project(folder: Path, env: Mapping[str, str]) -> Project:
    """Return the project of a folder: the one that DRYDOCK_PROJECT names, else the nearest drydock.yaml upwards.

    Without any it is drydock itself, which is a project with nothing below it. Layers of others are not looked for:
    inputs/others.py does. Raises InputError, also for a project that was found and that another user could have
    written: its templates and entrypoints run code.
    """
    named_folder = env.get(PROJECT_VARIABLE, "")
    start = Path(named_folder or folder).resolve()
    root = next((path for path in (start, *start.parents) if path == ROOT or _has_project(path)), ROOT)
    if named_folder and root != start:
        hint = f"name the folder that contains it with {PROJECT_OPTION} or {PROJECT_VARIABLE}"
        raise InputError(f"{named_folder}: found no {PROJECT_FILE}", hint=hint)
    if root == ROOT:
        return DRYDOCK
    project = Project(root, (ROOT,), is_discovered=not named_folder)
    project.check_writers(READ, [path for path in (start, *start.parents) if path.is_relative_to(root)])
    return project


def _has_project(folder: Path) -> bool:
    """Return whether a folder has a drydock.yaml. One that cannot be entered, such as another user's, has none."""
    try:
        return has_file(folder / PROJECT_FILE)
    except PermissionError:
        return False


def read_settings(project: Project) -> ProjectFile | None:
    """Return a project's drydock.yaml; None for drydock itself, which has none. Raises InputError."""
    path = project.root / PROJECT_FILE
    return validate_document(ProjectFile, read_yaml(path, PROJECT_FILE)) if has_file(path) else None


def make_layered_project(root: Path, lower: Sequence[Path]) -> Project:
    """Return the project of a folder over others and drydock, the nearest first. Raises InputError for equal names."""
    if len(lower) <= 1:
        return Project(root, (*lower,))
    names = {LOWEST: "drydock itself"}
    for folder in (root, *lower[:-1]):
        name = read_project_name(folder)
        if name in names:
            text = f"{folder / PROJECT_FILE}: name: {name!r} is also the name of {names[name]}"
            raise InputError(text, hint="rows are inherited by a project's name; take one of them, or rename yours")
        names[name] = str(folder / PROJECT_FILE)
    return Project(root, (*lower,), tuple(name for name in [*names][2:]))


def read_project_name(folder: Path) -> str:
    """Return the name of the project in a folder. Raises InputError if it has none."""
    settings = read_settings(Project(folder))
    if settings is None:
        raise InputError(
            f"{folder}: found no {PROJECT_FILE}", hint="name a folder, an artefact or a commit with a project"
        )
    return settings.name
