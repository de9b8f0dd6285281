"""The verb `topology check`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.model.shared_options import JsonOption
from drydock.topology.topology_options import FileOptions, SshOptions


class TopologyCheckOptions(FileOptions, SshOptions, JsonOption):
    """Which nodes are checked, and where the report goes."""

    format: Literal["ansible", "kubernetes", "compose", "local"] = "ansible"
    """ansible: on the nodes, by ssh; kubernetes: in pods, by kubectl exec; compose: in containers on this machine;
    local: this node alone"""
    root: str = ""
    """folder with recorded hosts, whose chips' addresses are compared [default: those of a topology.yaml]"""
    junit: str = ""
    """file to write JUnit XML to"""
    namespace: str = ""
    """namespace of the pods, with --format kubernetes [default: that of kubectl's context]"""
    fabric: bool = False
    """measure an all-reduce between the nodes too; their devices must be free"""


@Verb
def check_topology(options: TopologyCheckOptions) -> None:
    """Check the nodes of a topology before it starts: image, model, driver, ports, network, recorded host."""
    from drydock.topology.preflight import preflight_tasks

    what = (
        options.format,
        options.model,
        options.target,
        options.root,
        options.make_ssh(),
        options.namespace,
        options.fabric,
    )
    findings = preflight_tasks.check_topology(here(), Path(options.file), preflight_tasks.CheckOptions(*what))
    preflight_tasks.report_topology_check(findings, options.junit, json=options.json)
