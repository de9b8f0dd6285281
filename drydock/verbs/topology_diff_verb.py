"""The verb `topology diff`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
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
    write_result(changes, plan_diff.format_plan_changes(changes), json=options.json)
