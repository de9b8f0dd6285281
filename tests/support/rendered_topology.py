"""Render a topology's file, as `topology render` does."""

from __future__ import annotations

from pathlib import Path

from drydock.config.project_choice import DRYDOCK
from drydock.topology.planned_file import plan_topology_file
from drydock.topology.render import find_host_commands, write_plan


def render_topology(file: Path, kind: str, output: Path, hosts: str = "", model: str = "") -> tuple[Path, ...]:
    """Return the files that changed."""
    plan = plan_topology_file(DRYDOCK, file, model)
    return write_plan(DRYDOCK, plan, kind, output, find_host_commands(file, plan, hosts))
