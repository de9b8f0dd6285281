"""The verb `topology verify`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import FileOptions, JsonOption


class TopologyVerifyOptions(FileOptions, JsonOption):
    """Which topology is asked."""


@Verb
def verify_topology(options: TopologyVerifyOptions) -> None:
    """Ask a running topology: a right answer of every pair of prefill and decode, and of the router."""
    from drydock.topology import verify
    from drydock.topology.planned_file import plan_topology_file

    plan = plan_topology_file(here(), Path(options.file), options.model, options.target)
    answers = verify.prove_plan(plan, verify.read_client_key(plan))
    write_output(verify.format_shown_answers(answers, json=options.json))
