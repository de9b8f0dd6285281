"""`topology plan --rehearse`: the vLLM of the image checks the plan of each node, by its recorded host, here. IO.

Of replicas, which are alike, the first is rehearsed. Each rank is a container without devices and without a network.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.run import docker_command, entrypoint
from drydock.run.container import Container, RunRequest, make_container
from drydock.run.engine import Here
from drydock.run.needed_image import require_image
from drydock.topology.plan_model import Rank, Replica, TopologyPlan
from drydock.topology.planned_file import find_planned_variant
from drydock.topology.topology_file import read_topology

REFUSED = 14
"""Exit code in entrypoints/core/errors.py."""


class Rehearsed(NamedTuple):
    """What vLLM said of one rank's plan."""

    node: str
    group: str
    rank: int
    outcome: str
    text: str
    """vLLM's words if it refuses, else what it checked and why it was not asked."""


def rehearse_topology(project: Project, plan: TopologyPlan, file: Path, model: str) -> Iterator[Rehearsed]:
    """Yield what vLLM says of each rank's plan. Raises InputError, HostError, EngineError."""
    if file.suffix == ".json":
        raise InputError(f"--rehearse: {file} is a plan, which has no recorded hosts", hint="give the topology.yaml")
    here, hosts = Here(project), read_topology(file).hosts
    for replica in _list_first_replicas(plan):
        for rank in replica.ranks:
            log(f"rehearsing rank {rank.rank} of group {replica.group} for {rank.node}: about half a minute")
            yield _run_rehearsal(
                replica, rank, _make_rehearsal_container(project, plan, rank, hosts[rank.node], model, here)
            )


def _list_first_replicas(plan: TopologyPlan) -> Iterator[Replica]:
    groups: set[str] = set()
    for replica in plan.replicas:
        if replica.group not in groups:
            groups.add(replica.group)
            yield replica


def _make_rehearsal_container(
    project: Project, plan: TopologyPlan, rank: Rank, host: Path, model: str, here: Here
) -> Container:
    """Return the container that plans as the rank's would, and rehearses."""
    words = ("plan", "--rehearse", "--json", "--root", str(host), *rank.words[1:])
    here_too = model or (plan.model if plan.model.startswith("/") else "")
    volumes = (f"{Path(here_too).absolute()}:{plan.model}:ro",) if here_too and plan.model.startswith("/") else ()
    config = ("--model-config", here_too) if here_too and not volumes else ()
    request = RunRequest(
        image=plan.image,
        arguments=(*words, *config),
        env=tuple(f"{name}={value}" for name, value in rank.env.items()),
        volumes=volumes,
        network="none",
        name=f"rehearsal-{rank.node}",
    )
    variant = find_planned_variant(project, plan)
    return require_image(make_container(variant, request, here.machine), variant.id, here)


def _run_rehearsal(replica: Replica, rank: Rank, container: Container) -> Rehearsed:
    result = subprocess.run(docker_command.docker_argv(container), capture_output=True, text=True, check=False)
    if result.returncode not in (0, REFUSED):
        raise entrypoint.make_entrypoint_error(result.returncode, result.stderr[result.stderr.rfind("drydock: ") :])
    record = json.loads(result.stdout)["rehearsal"]
    return Rehearsed(rank.node, replica.group, rank.rank, record["outcome"], _format_outcome(record))


def _format_outcome(record: Mapping[str, Any]) -> str:
    words = " -- from: ".join(record["words"])
    checked = ", ".join(record["checked"])
    if record["outcome"] == "refused":
        return f"vLLM {record['vllm']} refuses it: {words}"
    if record["outcome"] == "constructed":
        return f"vLLM {record['vllm']} takes it, by its {checked}; not asked: {', '.join(record['unchecked'])}"
    return f"not asked: {record['because']}" + (f"; vLLM took: {checked}" if checked else "")


def format_rehearsed_rank(rehearsed: Rehearsed) -> str:
    """Format a line."""
    return f"{rehearsed.node}: group {rehearsed.group}, rank {rehearsed.rank}: {rehearsed.text}"
