"""Reads the known failures of an accelerator. Only builds and pages need them, so the matrix does not have them."""

from __future__ import annotations

from drydock.config.layers import merged, read_layers
from drydock.config.validation import validate
from drydock.core.project import Project
from drydock.model.checks import Failures


def read_failures(project: Project, accelerator: str = "") -> Failures:
    """Return the failures of any host and those of an accelerator, with their texts in other languages.

    Raises InputError.
    """
    folders = ("templates", f"templates/{accelerator}") if accelerator else ("templates",)
    patterns = (f"{folder}/failures{end}" for folder in folders for end in (".yaml", ".??.yaml"))
    names = [project.name_of(path) for pattern in patterns for path in project.glob(pattern)]
    return validate(Failures, merged(read_layers(project, name) for name in names))
