"""A plan → files for Compose, Kubernetes, Ansible or Slurm, or ranktables.

Each format is a pure function of the plan (and, for ranktables, of the nodes' recorded hosts); `write_render` does the
IO.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import parse_json_object, read_bounded
from drydock.core.project import Project
from drydock.model.variant import Variant
from drydock.run.access import bracket_address
from drydock.run.container import is_local
from drydock.run.docker_command import unknown_groups
from drydock.run.kubernetes_manifest import KEY_SECRET, list_cluster_remarks
from drydock.run.monitoring import render_monitoring_files
from drydock.run.podman import engine_remarks, image_remarks
from drydock.topology import planned_file, topology_keys
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import ansible, compose, folder, kubernetes, ranktable, readme, slurm, verify_job
from drydock.topology.render.chips import Commands, read_chip_address
from drydock.topology.render.parts import RANKTABLES, make_placed_ranks, wants_ranktables
from drydock.topology.topology_file import HOST_AT_MOST, read_topology

FORMATS = ("compose", "kubernetes", "disaggregatedset", "ansible", "slurm", "ranktable")
"""disaggregatedset: as kubernetes, with prefill and decode in one DisaggregatedSet."""
_PODS = ("kubernetes", "disaggregatedset")
MONITORING = "prometheus"
"""The one format that starts nothing and is for every engine."""


def write_plan(
    project: Project,
    plan: TopologyPlan,
    kind: str,
    output: Path,
    hosts: Mapping[str, Commands],
    *,
    dry_run: bool = False,
) -> tuple[Path, ...]:
    """Render a plan into a folder, with the engine's commands in a README, and return the files that changed.

    With `dry_run` nothing is written; the files that would change are returned.

    `hosts`: recorded commands of each node, for ranktables. Raises InputError and DiskFullError.
    """
    if kind == MONITORING:
        files = render_monitoring_files(list_metric_targets(plan))
        return folder.replace_rendered_files(output, kind, files, dry_run=dry_run)
    variant = planned_file.find_planned_variant(project, plan)
    has_verb = planned_file.is_own_image(project, verify_job.choose_asking_image(plan))
    files = render_plan(plan, variant, kind, hosts, has_verb=has_verb)
    commands = {} if kind == "ranktable" else {readme.make_readme_name(kind): readme.format_readme(plan, kind)}
    for text in list_setup_remarks(plan, variant, kind):
        log(text)
    list_kind, files = "kubernetes" if kind in _PODS else kind, {**commands, **files}
    changed = folder.replace_rendered_files(output, list_kind, files, dry_run=dry_run)
    if not dry_run and kind in ("compose", "slurm"):
        topology_keys.ensure_secrets(output, topology_keys.list_secret_names(plan))
    return changed


def list_metric_targets(plan: TopologyPlan) -> tuple[str, ...]:
    """Return ADDRESS:PORT of every port with metrics: those of the APIs, and the status ports of all ranks."""
    ranks = [rank for replica in plan.replicas for rank in replica.ranks]
    ports = ((bracket_address(rank.address), rank.ports.get(name)) for rank in ranks for name in ("api", "status"))
    return tuple(dict.fromkeys(f"{address}:{port}" for address, port in ports if port))


def read_host_commands(hosts: Path, plan: TopologyPlan) -> dict[str, Commands]:
    """Read each node's recorded commands, from NODE.json or NODE/host.json. Raises InputError."""
    nodes = sorted({rank.node for replica in plan.replicas for rank in replica.ranks})
    return {node: _read_commands(_find_recorded_host(hosts, node)) for node in nodes}


def find_host_commands(file: Path, plan: TopologyPlan, folder: str) -> dict[str, Commands]:
    """Return each node's recorded commands: of --root, or of the hosts that a topology.yaml names.

    The latter only if ranks read ranktables, since other plans need none. A plan's file names no hosts. Raises
    InputError.
    """
    if folder:
        return read_host_commands(Path(folder), plan)
    ranks = [rank for replica in ranktable.add_ranktable_paths(plan).replicas for rank in replica.ranks]
    if file.suffix == ".json" or not any(wants_ranktables(rank.env) for rank in ranks):
        return {}
    hosts = read_topology(file).hosts
    return {rank.node: _read_commands(hosts[rank.node]) for rank in ranks}


def render_plan(
    plan: TopologyPlan, variant: Variant, kind: str, hosts: Mapping[str, Commands], *, has_verb: bool = True
) -> dict[str, str]:
    """Return path → content in one of FORMATS. Raises InputError, also if ranks read ranktables that nothing gives.

    `has_verb`: whether `health` of the image that asks for the known answer has --topology.
    """
    plan = ranktable.add_ranktable_paths(plan)
    if kind == "ranktable" and not hosts:
        raise InputError("--format ranktable: ranktables are made of recorded hosts", hint="add --root FOLDER")
    if kind in _PODS:
        return kubernetes.render_kubernetes_files(
            plan, variant, disaggregated=kind == "disaggregatedset", has_verb=has_verb
        )
    tables = ranktable.make_ranktables(plan, hosts) if hosts else {}
    if kind == "ranktable":
        return tables
    _check_ranktables(plan, variant, tables)
    if kind == "compose":
        return compose.render_compose_files(plan, variant, tables)
    if kind == "slurm":
        return slurm.render_slurm_files(plan, variant, tables)
    return ansible.render_ansible_files(plan, variant, tables, collect_chip_addresses(plan, hosts))


def list_setup_remarks(plan: TopologyPlan, variant: Variant, kind: str) -> tuple[str, ...]:
    """Return what must be set up outside the files."""
    names = topology_keys.list_secret_names(plan)
    if kind == "ansible" and names:
        where = "the shell that runs it, or the variable topology_secrets, such as of a vault"
        return (f"the playbook takes {' and '.join(names)} from {where}",)
    if kind == "slurm":
        containers = [item.container for item in make_placed_ranks(plan, variant)]
        texts = [text for container in containers for text in (*engine_remarks(container), *unknown_groups(container))]
        return tuple(dict.fromkeys([*texts, *(image_remarks(plan.router.image) if plan.router else ())]))
    if kind not in _PODS:
        return ()
    lines = (
        [f"secret {KEY_SECRET}: the pods start only with it; {readme.make_readme_name(kind)} has the command"]
        if names
        else []
    )
    lines += [text for item in make_placed_ranks(plan, variant) for text in list_cluster_remarks(item.container)]
    if plan.router and is_local(plan.router.image):
        text = f"image {plan.router.image} exists on this machine only: push it, and name it by digest as router.image"
        lines.append(text)
    return tuple(dict.fromkeys(lines))


def _check_ranktables(plan: TopologyPlan, variant: Variant, tables: Mapping[str, str]) -> None:
    table_names = {
        value.removeprefix(f"{RANKTABLES}/")
        for item in make_placed_ranks(plan, variant)
        for value in item.env.values()
        if value.startswith(f"{RANKTABLES}/")
    }
    absent = sorted(table_names - {*tables})
    if absent:
        raise InputError(
            *(f"ranktable {name}: a rank reads it, but no recorded host gives it" for name in absent),
            hint="add --root FOLDER with NODE.json or NODE/host.json of every node",
        )


def collect_chip_addresses(plan: TopologyPlan, hosts: Mapping[str, Commands]) -> dict[str, dict[int, str]]:
    """Return node → chip → recorded address, which the playbook compares with the machine's."""
    chip_addresses: dict[str, dict[int, str]] = {}
    for rank in (rank for replica in plan.replicas for rank in replica.ranks if hosts):
        chip_addresses.setdefault(rank.node, {}).update(
            {device: read_chip_address(hosts[rank.node], device) for device in rank.devices}
        )
    return chip_addresses


# --- files ----------------------------------------------------------------------------------------------------------


def _find_recorded_host(hosts: Path, node: str) -> Path:
    """Return a node's recorded host. Raises InputError."""
    places = (hosts / f"{node}.json", hosts / node / "host.json")
    for place in places:
        if os.path.isfile(place):  # noqa: PTH113 - Path.is_file raises for a long name
            return place
    raise InputError(f"node {node}: found neither {places[0]} nor {places[1]}", hint="facts --record writes host.json")


def _read_commands(path: Path) -> Commands:
    """Return a recorded host's commands. Raises InputError."""
    try:
        commands = parse_json_object(read_bounded(path, HOST_AT_MOST), str(path)).get("commands", {})
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if not isinstance(commands, dict) or not all(isinstance(item, dict) for item in commands.values()):
        raise InputError(f"{path}: commands: expected an object for each command, with rc and stdout")
    return commands
