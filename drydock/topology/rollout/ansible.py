"""Topologies on several machines, by the playbook that `topology render --format ansible` writes. IO."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.core.errors import EngineError, InputError
from drydock.core.files import below, loads, write_atomically
from drydock.model.variant import Variant
from drydock.run.container import name_of
from drydock.run.docker import STOP_SECONDS
from drydock.topology.planned import TopologyPlan
from drydock.topology.render import ansible as rendering
from drydock.topology.render import render
from drydock.topology.render.chips import Commands
from drydock.topology.render.text import yaml_text
from drydock.topology.rollout import slices
from drydock.topology.rollout.runner import Seen

STDERR = 2
ANSWER_AT_MOST = 64 << 20
"""Bytes of what the machines' engines say of their containers."""
HINT = "its messages are above; `ansible topology --inventory inventory.yml --module-name ping` tests the connections"
QUIET = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"}


class Ansible:
    """A playbook for each plan, in a folder."""

    def __init__(
        self, folder: Path, variant: Variant, known: Sequence[TopologyPlan], hosts: Mapping[str, Commands]
    ) -> None:
        self._folder, self._variant, self._hosts = folder, variant, hosts
        self._known = tuple(known)
        """What was started last: Ansible does not know what is no longer wanted."""

    def start(self, wanted: Sequence[TopologyPlan]) -> None:
        """Run the playbook of each plan, then remove what is no longer wanted. Raises EngineError and InputError."""
        for number, plan in enumerate(wanted):
            folder = self._folder / f"plan-{number}"
            self._write(folder, render(plan, self._variant, "ansible", self._hosts))
            self._playbook(folder, "check,ranktable,run")
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
            place = self._folder / "logs"
            extra = ("--extra-vars", f"logs_lines={lines}", "--extra-vars", f"logs_folder={place.absolute()}")
            self._playbook(self._folder / f"plan-{number}", "logs", *extra)

    def states(self) -> Mapping[str, Seen]:
        """Return the containers of all machines. Raises EngineError."""
        found: dict[str, Seen] = {}
        for number, plan in enumerate(self._known):
            said = self._inspected(self._folder / f"plan-{number}", plan)
            found |= {name: seen for each in said for name, seen in _seen(each).items()}
        return found

    def reach(self) -> Mapping[str, str]:
        """Return the addresses of the plans."""
        return {name_of(node): address for plan in self._known for node, address in slices.addresses(plan).items()}

    def _remove(self, plan: TopologyPlan) -> None:
        folder = self._folder / "gone"
        shutil.rmtree(folder, ignore_errors=True)
        self._write(folder, removal(plan))
        self._playbook(folder, "stop")

    def _inspected(self, folder: Path, plan: TopologyPlan) -> list[Any]:
        """Return what `docker inspect` says on each machine; a machine without one of the containers says nothing."""
        found = []
        for node in slices.addresses(plan):
            names = [slices.container_name(*each) for each in slices.ranks_of(plan) if each[1].node == node]
            names += [plan.router.name] if plan.router and plan.router.node == node else []
            argv = [
                program("ansible"),
                node,
                "--inventory",
                "inventory.yml",
                "--module-name",
                "ansible.builtin.command",
            ]
            words = ["--args", f"docker container inspect {' '.join(names)}"]
            done = subprocess.run(
                [*argv, *words], cwd=folder, capture_output=True, check=False, env={**os.environ, **QUIET}
            )
            found.append(_answer(done.stdout[: ANSWER_AT_MOST + 1], node))
        return found

    def _write(self, folder: Path, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            write_atomically(below(folder, name), text)

    def _playbook(self, folder: Path, tags: str, *more: str) -> None:
        """Run a playbook; what it tells goes to standard error. Raises EngineError."""
        command = [program("ansible-playbook"), "--inventory", "inventory.yml", "playbook.yml", "--tags", tags, *more]
        done = subprocess.run(command, cwd=folder, stdout=STDERR, check=False)
        if done.returncode:
            raise EngineError(f"ansible-playbook --tags {tags}: exit {done.returncode}", hint=HINT)


def removal(plan: TopologyPlan) -> dict[str, str]:
    """Return the files with which the tag stop removes a plan's containers and no others. Pure."""
    hosts: dict[str, dict[str, list[dict[str, Any]]]] = {
        node: {"topology_ranks": [], "topology_routers": []} for node in slices.addresses(plan)
    }
    for replica, rank in slices.ranks_of(plan):
        hosts[rank.node]["topology_ranks"].append(_named(slices.container_name(replica, rank)))
    if plan.router:
        hosts[plan.router.node]["topology_routers"].append(_named(plan.router.name))
    variables = {f"host_vars/{node}.yml": yaml_text(found, start=True) for node, found in hosts.items()}
    return {**rendering.static(), "inventory.yml": yaml_text(rendering.inventory(plan), start=True), **variables}


def _named(name: str) -> dict[str, Any]:
    return {"name": name, "stop_timeout": STOP_SECONDS}


def program(name: str) -> str:
    """Return a program of Ansible: of this environment, or on PATH. Raises EngineError."""
    own = Path(sys.executable).with_name(name)
    found = str(own) if own.is_file() else shutil.which(name)
    if not found:
        hint = "install ansible-core, and the collections of requirements.yml: ansible-galaxy collection install -r …"
        raise EngineError(f"{name}: not found beside {sys.executable} or on PATH", hint=hint)
    return found


def _answer(data: bytes, node: str) -> Any:
    """Return the JSON that a machine's docker printed. Raises EngineError."""
    try:
        said = loads(data) if len(data) <= ANSWER_AT_MOST else {}
        stdout = said["plays"][0]["tasks"][0]["hosts"][node].get("stdout") or "[]"
        return loads(stdout)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise EngineError(f"node {node}: Ansible did not say what runs there", hint=HINT) from error


def _seen(found: Any) -> dict[str, Seen]:
    """Return the containers of one machine. Raises EngineError for what docker does not say."""
    try:
        return {
            str(each["Name"]).lstrip("/"): Seen(
                str(each["State"]["Status"]),
                str(each["Image"]),
                int(each.get("RestartCount", 0)),
                int(each["State"]["ExitCode"]),
            )
            for each in found
        }
    except (LookupError, TypeError, ValueError) as error:
        raise EngineError(f"docker container inspect: unexpected answer: {str(found)[:200]}") from error
