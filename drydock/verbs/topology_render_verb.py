"""The verb `topology render`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.user_language import translate_lines
from drydock.model.shared_options import DryRunOption, JsonOption, PlannedOptions


class TopologyRenderOptions(DryRunOption, PlannedOptions, JsonOption):
    """What is rendered, for which engine."""

    plan: str
    """a topology.yaml, or its plan: topology plan --json"""
    format: Literal["compose", "kubernetes", "disaggregatedset", "ansible", "slurm", "ranktable", "prometheus"]
    """compose, kubernetes, disaggregatedset, ansible, slurm, ranktable, or prometheus with a dashboard for Grafana"""
    output: str
    """folder to write to"""
    root: str = ""
    """folder with recorded hosts, NODE.json or NODE/host.json; ranktables are made of them"""


@Verb
def render_topology(options: TopologyRenderOptions) -> None:
    """Write a planned topology for Compose, Kubernetes, Ansible or Slurm, or its ranktables."""
    from drydock.topology.planned_file import plan_topology_file
    from drydock.topology.render import find_host_commands, write_plan

    file = Path(options.plan)
    plan = plan_topology_file(here(), file, options.model, options.target)
    hosts = find_host_commands(file, plan, options.root)
    paths = write_plan(here(), plan, options.format, Path(options.output), hosts, dry_run=options.dry_run)
    prefix, key = ("would write", "would_write") if options.dry_run else ("wrote", "wrote")
    write_result(
        {key: [*map(str, paths)]}, translate_lines("".join(f"{prefix} {path}\n" for path in paths)), json=options.json
    )
