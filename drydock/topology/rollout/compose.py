"""Topologies on one engine, by `docker compose`: each node is a network namespace, which outlives its ranks. IO."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import docker.errors

from drydock.core.errors import EngineError, RolloutError
from drydock.core.files import write_below
from drydock.engine import compose as plugin
from drydock.model.variant import Variant
from drydock.run.container import name_of
from drydock.topology.planned import TopologyPlan
from drydock.topology.render import compose as rendering
from drydock.topology.render import ranktable, render
from drydock.topology.render.chips import Commands
from drydock.topology.render.parts import placed
from drydock.topology.render.text import yaml_text
from drydock.topology.rollout.runner import SeenContainer, seen

PROJECT = "com.docker.compose.project"
SERVICE = "com.docker.compose.service"
"""Labels that Compose gives its containers (Compose's source, pkg/api/labels.go)."""
STDERR = 2


class Compose:
    """A Compose project in a folder."""

    def __init__(
        self, project: str, folder: Path, variant: Variant, holder: str, hosts: Mapping[str, Commands]
    ) -> None:
        self._project, self._folder, self._variant, self._hosts = project, folder, variant, hosts
        self._holder = holder
        """The image of the containers that hold the nodes: it must stay, or every rank would start again."""

    def start(self, wanted: Sequence[TopologyPlan]) -> None:
        """Write the files and let Compose do what differs. Raises EngineError and InputError."""
        plugin.ensure()
        write_below(self._folder, project_files(wanted, self._variant, self._holder, self._hosts))
        self._compose("up", "--detach", "--remove-orphans")

    def stop(self) -> None:
        """Stop and remove the containers and the network; volumes stay. Raises EngineError."""
        plugin.ensure()
        self._compose("down", "--remove-orphans")

    def logs(self, names: Sequence[str], lines: int, *, follow: bool) -> None:
        """Print the logs on standard output. Raises EngineError."""
        plugin.ensure()
        self._compose("logs", "--tail", str(lines), *(("--follow",) if follow else ()), *names, stdout=None)

    def states(self) -> Mapping[str, SeenContainer]:
        """Return the project's containers by the names of their services. Raises EngineError."""
        return {each["Config"]["Labels"][SERVICE]: seen(each) for each in self._containers()}

    def reach(self) -> Mapping[str, str]:
        """Return the addresses of the containers that hold the nodes. Raises RolloutError if one has none."""
        found = {}
        for each in self._containers():
            service = each["Config"]["Labels"][SERVICE]
            if service.startswith(_HOLDER):
                networks = each["NetworkSettings"]["Networks"].values()
                address = next(
                    (net[key] for net in networks for key in ("IPAddress", "GlobalIPv6Address") if net[key]), ""
                )
                if not address:
                    text = f"node {service.removeprefix(_HOLDER)}: its container is {each['State']['Status']}"
                    raise RolloutError(f"{text} and has no address", hint=f"docker logs {each['Name'].lstrip('/')}")
                found[service.removeprefix(_HOLDER)] = address
        return found

    def _containers(self) -> list[dict[str, Any]]:
        try:
            client = docker.from_env()
            listed = client.api.containers(all=True, filters={"label": f"{PROJECT}={self._project}"})
            return [found for each in listed if (found := _inspected(client, each["Id"]))]
        except docker.errors.DockerException as error:
            raise EngineError(f"cannot connect to the Docker engine: {error}", hint="run `./inv engine`") from error

    def _compose(self, *words: str, stdout: int | None = STDERR) -> None:
        """Run docker compose; what it tells goes to standard error. Raises EngineError."""
        command = ("docker", "compose", "--project-name", self._project, "--file", str(self._folder / "compose.yaml"))
        done = subprocess.run([*command, *words], stdout=stdout, check=False, env={**os.environ, "COMPOSE_MENU": "0"})
        if done.returncode:
            hint = "its messages are above; `./inv topology logs FILE` shows the containers'"
            raise EngineError(f"docker compose {words[0]}: exit {done.returncode}", hint=hint)


_HOLDER = "node."


def project_files(
    wanted: Sequence[TopologyPlan], variant: Variant, holder: str, hosts: Mapping[str, Commands]
) -> dict[str, str]:
    """Return compose.yaml with the services of every plan, and the ranktables. Pure. Raises InputError."""
    whole: dict[str, Any] = {"services": {}, "networks": {}, "volumes": {}}
    files: dict[str, str] = {}
    for each in reversed(wanted):  # the first plan's nodes, router and published ports win
        # without its router, a plan's servers would be written in another way, and Compose would start them again
        plan = each if each.router else each.model_copy(update={"router": wanted[0].router})
        files |= {name: text for name, text in render(plan, variant, "compose", hosts).items() if name.startswith("ra")}
        read = ranktable.reading(plan)
        for part, entries in rendering.engine(read, placed(read, variant), holder).items():
            whole[part] |= entries
    return {**files, "compose.yaml": yaml_text(whole)}


def node_names(reach: Mapping[str, str], nodes: Sequence[str]) -> dict[str, str]:
    """Return the addresses by the plan's names of the nodes."""
    return {node: reach[name_of(node)] for node in nodes if name_of(node) in reach}


def _inspected(client: docker.DockerClient, number: str) -> dict[str, Any] | None:
    """Return what the engine knows of a container; None if it is gone by now."""
    try:
        found: dict[str, Any] = client.api.inspect_container(number)
    except docker.errors.NotFound:
        return None
    return found
