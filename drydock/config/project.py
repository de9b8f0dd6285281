"""Which project a command is about. IO."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from drydock.config import mirrors
from drydock.config.strict_yaml import read_yaml
from drydock.config.validation import validate
from drydock.core.errors import InputError
from drydock.core.paths import CACHE, ROOT
from drydock.core.project import Project
from drydock.model.project import ProjectFile

DRYDOCK = Project(ROOT)
"""drydock's own files."""
FILE = "drydock.yaml"
VARIABLE = "DRYDOCK_PROJECT"
OPTION = "--project"
"""Before the task, it means the same as the variable."""


@functools.cache
def current() -> Project:
    """Return the project of this process, see `find`, and use its folders unless a variable names others.

    Raises InputError.
    """
    project = find(Path.cwd(), os.environ)
    settings = read_settings(project)
    if settings:
        defaults = settings.defaults
        named = {mirrors.VARIABLE: settings.mirrors, CACHE: defaults.store, "HF_HUB_CACHE": defaults.model_cache}
        for variable, name in named.items():
            if name:
                os.environ.setdefault(variable, str(project.root / name))
    return project


def find(folder: Path, env: Mapping[str, str]) -> Project:
    """Return the project of a folder: the one that DRYDOCK_PROJECT names, else the nearest drydock.yaml upwards.

    Without any it is drydock itself, which is a project with nothing below it. Raises InputError.
    """
    named = env.get(VARIABLE, "")
    start = Path(named or folder).resolve()
    root = next((each for each in (start, *start.parents) if each == ROOT or (each / FILE).is_file()), ROOT)
    if named and root != start:
        hint = f"name the folder that contains it with {OPTION} or {VARIABLE}"
        raise InputError(f"{named}: found no {FILE}", hint=hint)
    return DRYDOCK if root == ROOT else Project(root, (ROOT,))


def read_settings(project: Project) -> ProjectFile | None:
    """Return a project's drydock.yaml; None for drydock itself, which has none. Raises InputError."""
    path = project.root / FILE
    return validate(ProjectFile, read_yaml(path, FILE)) if path.is_file() else None
