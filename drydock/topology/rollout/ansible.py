"""Topologies on several machines, by the playbook that `topology render --format ansible` writes. IO."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.core.console import log
from drydock.core.errors import EngineError, InputError
from drydock.core.files import loads, write_below
from drydock.model.variant import Variant
from drydock.run.container import name_of
from drydock.run.docker import STOP_SECONDS
from drydock.topology.planned import TopologyPlan
from drydock.topology.playbook import run as running
from drydock.topology.render import ansible as rendering
from drydock.topology.render import render
from drydock.topology.render.chips import Commands
from drydock.topology.render.parts import addresses, container_name
from drydock.topology.render.text import yaml_text
from drydock.topology.rollout import slices
from drydock.topology.rollout.runner import SeenContainer, seen

LOOK = "Look at the containers"
INSPECT = "{{ ['docker', 'container', 'inspect'] + topology_names }}"
_RUN, _STOP, _LOGS = ("check", "ranktable", "run"), ("stop",), ("logs",)


class Ansible:
    """A playbook for each plan, in a folder."""

    def __init__(
        self,
        folder: Path,
        variant: Variant,
        known: Sequence[TopologyPlan],
        hosts: Mapping[str, Commands],
        ssh: running.Ssh | None = None,
    ) -> None:
        self._folder, self._variant, self._hosts, self._ssh = folder, variant, hosts, ssh
        self._known = tuple(known)
        """What was started last: Ansible does not know what is no longer wanted."""

    def start(self, wanted: Sequence[TopologyPlan]) -> None:
        """Run the playbook of each plan, then remove what is no longer wanted. Raises EngineError and InputError."""
        for number, plan in enumerate(wanted):
            folder = self._folder / f"plan-{number}"
            write_below(folder, render(plan, self._variant, "ansible", self._hosts))
            self._playbook(folder, _RUN)
        for plan in self._known:
            if gone := slices.without(plan, wanted):
                self._remove(gone)
        self._known = tuple(wanted)

    def stop(self) -> None:
        """Stop and remove every container; volumes stay. Raises EngineError."""
        for plan in self._known:
            self._remove(plan)

    def logs(self, names: Sequence[str], lines: int, *, follow: bool) -> None:
        """Fetch the logs into the folder `logs`. Raises InputError for what Ansible cannot, and EngineError."""
        if names or follow:
            raise InputError("logs: --follow and names of containers: not with Ansible, which fetches all logs once")
        for number, _ in enumerate(self._known):
            more = {"logs_lines": lines, "logs_folder": str(self._folder.absolute() / "logs")}
            self._playbook(self._folder / f"plan-{number}", _LOGS, more)

    def states(self) -> Mapping[str, SeenContainer]:
        """Return the containers of all machines. Raises EngineError."""
        found: dict[str, SeenContainer] = {}
        for plan in self._known:
            folder = self._folder / "look"
            write_below(folder, looking(plan))
            said = running.playbook(folder, ssh=self._ssh, keep=[LOOK]).answers.get(LOOK, {})
            for node, answer in said.items():
                found |= _seen(answer, node)
        return found

    def reach(self) -> Mapping[str, str]:
        """Return the addresses of the plans."""
        return {name_of(node): address for plan in self._known for node, address in addresses(plan).items()}

    def _remove(self, plan: TopologyPlan) -> None:
        folder = self._folder / "gone"
        shutil.rmtree(folder, ignore_errors=True)
        write_below(folder, removal(plan))
        self._playbook(folder, _STOP)

    def _playbook(self, folder: Path, tags: Sequence[str], more: Mapping[str, Any] | None = None) -> None:
        """Run a playbook and log what it does. Raises EngineError with each task that failed."""
        played = running.playbook(folder, tags, ssh=self._ssh, variables=more, told=_tell)
        if not played.good:
            failed = (f"{each.node}: {each.task}: {each.text}" for each in played.failures)
            raise EngineError(*failed, hint="`./inv topology check FILE` says what a machine lacks")


def _tell(event: str, name: str) -> None:
    log(f"{event}: {name}")


def removal(plan: TopologyPlan) -> dict[str, str]:
    """Return the files with which the tag stop removes a plan's containers and no others. Pure."""
    hosts: dict[str, dict[str, list[dict[str, Any]]]] = {
        node: {"topology_ranks": [], "topology_routers": []} for node in addresses(plan)
    }
    for replica, rank in slices.ranks_of(plan):
        hosts[rank.node]["topology_ranks"].append(_named(container_name(replica, rank)))
    if plan.router:
        hosts[plan.router.node]["topology_routers"].append(_named(plan.router.name))
    variables = {f"host_vars/{node}.yml": yaml_text(found, start=True) for node, found in hosts.items()}
    return {**rendering.static(), "inventory.yml": yaml_text(rendering.inventory(plan), start=True), **variables}


def _named(name: str) -> dict[str, Any]:
    return {"name": name, "stop_timeout": STOP_SECONDS}


def looking(plan: TopologyPlan) -> dict[str, str]:
    """Return a playbook that asks each machine's engine for the plan's containers. Pure."""
    names: dict[str, list[str]] = {node: [] for node in addresses(plan)}
    for replica, rank in slices.ranks_of(plan):
        names[rank.node].append(container_name(replica, rank))
    if plan.router:
        names[plan.router.node].append(plan.router.name)
    task = {"name": LOOK, "ansible.builtin.command": {"argv": INSPECT}, "changed_when": False, "failed_when": False}
    play = {"name": LOOK, "hosts": "topology", "gather_facts": False, "tasks": [task]}
    variables = {f"host_vars/{node}.yml": yaml_text({"topology_names": own}, start=True) for node, own in names.items()}
    inventory = yaml_text(rendering.inventory(plan), start=True)
    return {"playbook.yml": yaml_text([play], start=True), "inventory.yml": inventory, **variables}


def _seen(answer: Mapping[str, Any], node: str) -> dict[str, SeenContainer]:
    """Return the containers of one machine; docker prints those that it has. Raises EngineError for other answers."""
    try:
        return {str(each["Name"]).lstrip("/"): seen(each) for each in loads(answer["stdout"] or "[]")}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"node {node}: docker container inspect: an unexpected answer: {error!r}") from error
