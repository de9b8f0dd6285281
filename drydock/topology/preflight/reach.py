"""Asks the machines of a topology: over Ansible, in containers on one engine, or this machine itself. IO."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from drydock.core.errors import EngineError, InputError
from drydock.core.files import parse_json, read_bounded, write_below
from drydock.engine import compose as plugin
from drydock.run.container import name_of
from drydock.topology.playbook.run import Ssh, bounded, playbook
from drydock.topology.preflight.node_request import NodeRequest
from drydock.topology.preflight.node_response import AT_MOST, NodeResponse, read_answer
from drydock.topology.render.text import yaml_text

KEPT_AT_MOST = 4 * AT_MOST
"""Bytes of the file in which Ansible keeps an answer (render/roles/preflight): its text twice, with escapes."""
LINES = 40
"""Last lines of Ansible's that are shown if it asked no machine."""
HOLDER = "node."
"""What the services that hold a node's network begin with (drydock/topology/render/compose.py)."""
SECONDS = 900.0
Answers = dict[str, NodeResponse | str]
"""Node → its answer, or why there is none."""


def by_ansible(asked: Sequence[NodeRequest], files: Mapping[str, str], ssh: Ssh) -> Answers:
    """Ask every node over ssh; `files` are those of the rendered playbook. Raises EngineError and InputError."""
    with tempfile.TemporaryDirectory(prefix="drydock-preflight-") as made:
        folder, answers = Path(made, "playbook"), Path(made, "answers")
        answers.mkdir()
        write_below(folder, files)
        words = {each.node: list(each.words) for each in asked}
        variables = {"preflight_asked": words, "preflight_folder": str(answers)}
        said: deque[str] = deque(maxlen=LINES)
        with suppress(EngineError):
            playbook(folder, ("preflight",), ssh=ssh, variables=variables, seconds=SECONDS, told=said.append)
        found = {each.node: _kept(answers / f"{each.node}.json") for each in asked}
    if not any(found.values()):
        raise EngineError(f"ansible-playbook asked no machine: {bounded(chr(10).join(said))}")
    return {node: answer or "did not answer" for node, answer in found.items()}


def _kept(path: Path) -> NodeResponse | str:
    """Return what Ansible kept of a node: its answer, or why there is none; empty if it kept nothing."""
    if not path.is_file():
        return ""
    try:
        told = parse_json(read_bounded(path, KEPT_AT_MOST), path.name)
    except (OSError, InputError) as error:
        return f"an answer that cannot be read: {bounded(str(error))}"
    if told.get("unreachable") or told.get("rc") != 0:
        texts = (str(told[key]).strip() for key in ("msg", "stderr", "module_stderr") if told.get(key))
        return bounded(" ".join(dict.fromkeys(texts)) or "failed and said nothing")
    return _read(str(told.get("stdout", "")))


def here(asked: Sequence[NodeRequest]) -> Answers:
    """Ask this machine, which is one of the nodes. Raises InputError if it is not."""
    own = [each for each in asked if each.address and _is_own(each.address)]
    if len(own) != 1:
        text = f"--format local: {len(own)} nodes have an address of this machine, expected one"
        raise InputError(text, hint="run it on a node, or use --format ansible")
    return {own[0].node: _ask(own[0])}


def _ask(asked: NodeRequest) -> NodeResponse | str:
    """Ask on this machine, for itself or for a container."""
    return answer_of((sys.executable, *asked.words))


def answer_of(command: Sequence[str], given: bytes = b"") -> NodeResponse | str:
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


def by_compose(asked: Sequence[NodeRequest], project: Mapping[str, Any]) -> Answers:
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


def _inside(asked: NodeRequest, holder: str) -> NodeRequest:
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


def _read(text: str) -> NodeResponse | str:
    try:
        return read_answer(text)
    except ValueError as error:
        return f"an answer that cannot be read: {bounded(str(error))}"
