"""Asks the machines of a topology: over Ansible, in containers on one engine, or this machine itself. IO."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from drydock.core.errors import EngineError, InputError
from drydock.core.files import write_below
from drydock.engine import compose as plugin
from drydock.run.container import name_of
from drydock.topology.playbook.run import Played, Ssh, bounded, playbook
from drydock.topology.preflight.answers import AT_MOST, NodeAnswer, read_answer
from drydock.topology.preflight.asked import AskedNode
from drydock.topology.render.text import yaml_text

TASK = "Ask the machine"
"""In drydock/topology/render/roles/preflight."""
HOLDER = "node."
"""What the services that hold a node's network begin with (drydock/topology/render/compose.py)."""
SECONDS = 900.0
Answers = dict[str, NodeAnswer | str]
"""Node → its answer, or why there is none."""


def by_ansible(asked: Sequence[AskedNode], files: Mapping[str, str], ssh: Ssh) -> Answers:
    """Ask every node over ssh; `files` are those of the rendered playbook. Raises BuildError and InputError."""
    with tempfile.TemporaryDirectory(prefix="drydock-preflight-") as folder:
        write_below(Path(folder), files)
        words = {"preflight_asked": {each.node: list(each.words) for each in asked}}
        played = playbook(Path(folder), ("preflight",), ssh=ssh, variables=words, keep=(TASK,), seconds=SECONDS)
    return {each.node: _of_ansible(each.node, played) for each in asked}


def _of_ansible(node: str, played: Played) -> NodeAnswer | str:
    failures = [failure.text for failure in played.failures if failure.node == node]
    if failures:
        return failures[0]
    return _read(str(played.answers[TASK].get(node, {}).get("stdout", "")))


def here(asked: Sequence[AskedNode]) -> Answers:
    """Ask this machine, which is one of the nodes. Raises InputError if it is none of them."""
    own = [each for each in asked if each.address and _is_own(each.address)]
    if len(own) != 1:
        text = f"--format local: {len(own)} nodes have an address of this machine, expected one"
        raise InputError(text, hint="run it on a node, or use --format ansible")
    return {own[0].node: _ask(own[0])}


def _ask(asked: AskedNode) -> NodeAnswer | str:
    """Ask on this machine, for itself or for a container."""
    return answer_of((sys.executable, *asked.words))


def answer_of(command: Sequence[str], given: bytes = b"") -> NodeAnswer | str:
    """Run what asks a node, with `given` as its standard input, and read the answer."""
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                command, input=given, stdout=output, stderr=subprocess.PIPE, check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {SECONDS:.0f} s"
        if done.returncode:
            return bounded(done.stderr.decode(errors="replace")) or f"exit code {done.returncode}"
        output.seek(0)
        return _read(output.read(AT_MOST + 1).decode(errors="replace"))


def _is_own(address: str) -> bool:
    """Tell whether an address is one of this machine: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET  # noqa: PLR2004 - IPv6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def by_compose(asked: Sequence[AskedNode], project: Mapping[str, Any]) -> Answers:
    """Ask in containers with the networks that Compose gives the nodes; they are removed afterwards.

    `project`: the plan's Compose project, of which only the services that hold a node's network are started. Files and
    images are this machine's; each node's network is new, so its ports are free. Raises EngineError.
    """
    plugin.ensure()
    holders = holders_of(project)
    with tempfile.TemporaryDirectory(prefix="drydock-preflight-") as folder, ExitStack() as stack:
        path = Path(folder, "compose.yaml")
        path.write_text(yaml_text({"services": holders, "networks": project["networks"]}))
        compose = ("docker", "compose", "--project-name", Path(folder).name.lower(), "--file", str(path))
        stack.callback(_run, (*compose, "down"))
        _run((*compose, "up", "--detach"))
        inside = [_inside(each, _run((*compose, "ps", "--quiet", f"{HOLDER}{name_of(each.node)}"))) for each in asked]
        with ThreadPoolExecutor(max(1, len(inside))) as pool:
            return {each.node: answer for each, answer in zip(asked, pool.map(_ask, inside), strict=True)}


def holders_of(project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the services that hold a node's network. They publish no port, which a running topology may have."""
    return {
        name: {key: value for key, value in service.items() if key != "ports"}
        for name, service in project["services"].items()
        if name.startswith(HOLDER)
    }


def _inside(asked: AskedNode, holder: str) -> AskedNode:
    """Return what is asked of a node whose network a container holds."""
    words = list(asked.container)
    if "--network" in words:
        words[words.index("--network") + 1] = f"container:{holder.strip()}"
    return asked._replace(container=tuple(words))


def _run(command: Sequence[str]) -> str:
    """Return what a command of the engine printed. Raises EngineError."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        hint = "a topology that runs has the nodes' addresses: `topology down` stops it"
        raise EngineError(f"{' '.join(command[-3:])}: exit {done.returncode}: {bounded(done.stderr)}", hint=hint)
    return done.stdout


def _read(text: str) -> NodeAnswer | str:
    try:
        return read_answer(text)
    except ValueError as error:
        return f"an answer that cannot be read: {bounded(str(error))}"
