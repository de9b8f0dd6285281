"""The verb `requirements`."""

from __future__ import annotations

from drydock.cli.task_helpers import report_written
from drydock.cli.verb import Verb
from drydock.core.paths import ROOT
from drydock.model.shared_options import JsonOption


class RequirementsOptions(JsonOption):
    """What moves."""

    upgrade: bool = False
    """upgrade every package to its newest allowed version"""


@Verb
def resolve_requirements(options: RequirementsOptions) -> None:
    """Resolve pyproject.toml and requirements-*.in to requirements*.txt, with hashes."""
    from drydock.development import quality

    report_written(quality.lock_requirements(ROOT, upgrade=options.upgrade), json=options.json)
