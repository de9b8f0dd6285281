"""What verbs do, called as the command line calls them after it has checked the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from drydock.bundle.create import Created
from drydock.bundle.load import Loaded
from drydock.cli.verb_table import COMMANDS
from drydock.config.project_choice import DRYDOCK
from drydock.core.project import Project
from drydock.run.container import RunRequest
from drydock.run.engine import Here
from drydock.topology.planned_file import plan_topology_file
from drydock.topology.render import find_host_commands, write_plan
from drydock.verbs import run_verb
from drydock.verbs.bundle_create_verb import BundleCreateOptions, write_bundle
from drydock.verbs.bundle_load_verb import BundleLoadOptions, load_trusted
from drydock.verbs.run_verb import RunOptions


def call_verb(name: str, **options: Any) -> None:
    """Run what a verb does; its errors are raised."""
    verb = next(verbs[name] for verbs in COMMANDS.values() if name in [*verbs])
    verb.function(verb.record(**options))


def create_bundle(
    project: Project, targets: Sequence[str], output: Path, *, key: str = "", models: Sequence[Path] = ()
) -> Created:
    options = BundleCreateOptions(target=targets, output=str(output), sign_key=key, model=[*map(str, models)])
    return write_bundle(project, options)


def load_bundle(project: Project, file: Path, options: Mapping[str, Any] = MappingProxyType({})) -> Loaded:
    """Load a bundle with options of the verb; `models` may be a path."""
    texts = {**options, "models": str(options.get("models", ""))}
    return load_trusted(project, BundleLoadOptions(file=str(file), **texts))


def render_topology(file: Path, kind: str, output: Path, hosts: str = "", model: str = "") -> tuple[Path, ...]:
    plan = plan_topology_file(DRYDOCK, file, model)
    return write_plan(DRYDOCK, plan, kind, output, find_host_commands(file, plan, hosts))


def run_as(form: str = "docker", *, only_print: bool = False, detach: bool = False, json: bool = False) -> RunOptions:
    """Return the options that say what is done with the container; a request has the others."""
    return RunOptions(target="", format=form, print=only_print, detach=detach, json=json)


PLAIN = run_as()


def run_on_engine(target: str, request: RunRequest, options: RunOptions = PLAIN, *, here: Here) -> int:
    """Start a row of this checkout, or print it; return the exit code."""
    return run_verb.run_on_engine(DRYDOCK, target, request, options, here)
