"""What `run` does with a request, on a machine that a test makes."""

from __future__ import annotations

from drydock.config.project_choice import DRYDOCK
from drydock.run.container import RunRequest
from drydock.run.engine import Here
from drydock.verbs import run_verb
from drydock.verbs.run_verb import RunOptions


def run_as(form: str = "docker", *, only_print: bool = False, detach: bool = False, json: bool = False) -> RunOptions:
    """Return the options that say what is done with the container; a request has the others."""
    return RunOptions(target="", format=form, print=only_print, detach=detach, json=json)


PLAIN = run_as()


def run_on_engine(target: str, request: RunRequest, options: RunOptions = PLAIN, *, here: Here) -> int:
    """Start a row of this checkout, or print it; return the exit code."""
    return run_verb.run_on_engine(DRYDOCK, target, request, options, here)
