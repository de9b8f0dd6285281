"""The verb `topology diff`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.shared_options import JsonOption, PlannedOptions


class TopologyDiffOptions(PlannedOptions, JsonOption):
    """Two topologies."""

    old: str
    """topology.yaml, or its plan as JSON"""
    new: str
    """topology.yaml, or its plan as JSON"""


@Verb
def compare_topologies(options: TopologyDiffOptions) -> None:
    """Print what differs between the plans of two topologies."""
    from drydock.topology import plan_diff, planned_file

    plans = planned_file.plan_two_files(here(), Path(options.old), Path(options.new), options.model, options.target)
    changes = plan_diff.compare_topology_plans(*plans)
    write_output(
        format_json([change._asdict() for change in changes])
        if options.json
        else plan_diff.format_plan_changes(changes)
    )
