"""What `topology check` compares the nodes with: the recorded hosts of a topology.yaml. IO."""

from __future__ import annotations

from pathlib import Path

from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.model.variant import Variant
from drydock.topology.entrypoint_client import Entrypoint
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import collect_chip_addresses, find_host_commands
from drydock.topology.topology_file import read_topology


def read_chip_addresses(file: Path, plan: TopologyPlan, folder: str) -> dict[str, dict[int, str]]:
    """Return node → chip → recorded address. Raises InputError if --root has none."""
    try:
        return collect_chip_addresses(plan, find_host_commands(file, plan, folder))
    except InputError as error:
        if folder:
            raise
        log(f"the chips' addresses are not compared: {error.problems[0]}")
        return {}


def read_recorded_facts(project: Project, file: Path, variant: Variant) -> dict[str, dict[str, object]]:
    """Return the facts of each node's recorded host; none for a plan, which does not name them. Raises InputError."""
    if file.suffix == ".json":
        return {}
    hosts = read_topology(file).hosts
    facts = {path: Entrypoint(project, variant).facts(path) for path in {*hosts.values()}}
    return {node: facts[path] for node, path in hosts.items()}
