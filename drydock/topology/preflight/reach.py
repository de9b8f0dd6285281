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
from drydock.core.files import parse_json_object, read_bounded, write_below
from drydock.engine import compose_plugin
from drydock.model.shared_options import SshOptions
from drydock.run.container import name_of
from drydock.topology.playbook.playbook_run import run_playbook, shorten_machine_text
from drydock.topology.preflight.node_request import NodeRequest
from drydock.topology.preflight.node_response import AT_MOST, NodeResponse, read_answer
from drydock.topology.render.quoted_text import format_yaml

KEPT_AT_MOST = 4 * AT_MOST
"""Bytes of the file in which Ansible keeps an answer (render/roles/preflight): its text twice, with escapes."""
LINES = 40
"""Last lines of Ansible's that are shown if it asked no machine."""
HOLDER = "node."
"""What the services that hold a node's network begin with (drydock/topology/render/compose.py)."""
SECONDS = 900.0
Answers = dict[str, NodeResponse | str]
"""Node → its answer, or why there is none."""


def ask_by_ansible(requests: Sequence[NodeRequest], files: Mapping[str, str], ssh: SshOptions) -> Answers:
    """Ask every node over ssh; `files` are those of the rendered playbook. Raises EngineError and InputError."""
    with tempfile.TemporaryDirectory(prefix="drydock-preflight-") as scratch_name:
        folder, answers = Path(scratch_name, "playbook"), Path(scratch_name, "answers")
        answers.mkdir()
        write_below(folder, files)
        words = {request.node: list(request.words) for request in requests}
        variables = {"preflight_asked": words, "preflight_folder": str(answers)}
        last_lines: deque[str] = deque(maxlen=LINES)
        with suppress(EngineError):
            run_playbook(
                folder, ("preflight",), ssh=ssh, variables=variables, seconds=SECONDS, on_line=last_lines.append
            )
        responses = {request.node: _read_kept_answer(answers / f"{request.node}.json") for request in requests}
    if not any(responses.values()):
        raise EngineError(f"ansible-playbook asked no machine: {shorten_machine_text(chr(10).join(last_lines))}")
    return {node: answer or "did not answer" for node, answer in responses.items()}


def _read_kept_answer(path: Path) -> NodeResponse | str:
    """Return what Ansible kept of a node: its answer, or why there is none; empty if it kept nothing."""
    if not path.is_file():
        return ""
    try:
        record = parse_json_object(read_bounded(path, KEPT_AT_MOST), path.name)
    except (OSError, InputError) as error:
        return f"an answer that cannot be read: {shorten_machine_text(str(error))}"
    if record.get("unreachable") or record.get("rc") != 0:
        texts = (str(record[key]).strip() for key in ("msg", "stderr", "module_stderr") if record.get(key))
        return shorten_machine_text(" ".join(dict.fromkeys(texts)) or "failed and said nothing")
    return _parse_node_answer(str(record.get("stdout", "")))


def ask_here(requests: Sequence[NodeRequest]) -> Answers:
    """Ask this machine, which is one of the nodes. Raises InputError if it is not."""
    local_requests = [request for request in requests if request.address and _is_own(request.address)]
    if len(local_requests) != 1:
        text = f"--format local: {len(local_requests)} nodes have an address of this machine, expected one"
        raise InputError(text, hint="run it on a node, or use --format ansible")
    return {local_requests[0].node: _ask_locally(local_requests[0])}


def _ask_locally(request: NodeRequest) -> NodeResponse | str:
    """Ask on this machine, for itself or for a container."""
    return run_question((sys.executable, *request.words))


def run_question(command: Sequence[str], input_bytes: bytes = b"") -> NodeResponse | str:
    """Run what asks a node, with `input_bytes` as its standard input, and read the answer."""
    with tempfile.TemporaryFile() as output:
        try:
            result = subprocess.run(
                command, input=input_bytes, stdout=output, stderr=subprocess.PIPE, check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {SECONDS:.0f} s"
        if result.returncode:
            return shorten_machine_text(result.stderr.decode(errors="replace")) or f"exit code {result.returncode}"
        output.seek(0)
        return _parse_node_answer(output.read(AT_MOST + 1).decode(errors="replace"))


def _is_own(address: str) -> bool:
    """Tell whether an address is one of this machine: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET  # noqa: PLR2004 - IPv6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def ask_by_compose(requests: Sequence[NodeRequest], project: Mapping[str, Any]) -> Answers:
    """Ask in containers with the networks that Compose gives the nodes; they are removed afterwards.

    `project`: the plan's Compose project, of which only the services that hold a node's network are started. Files and
    images are this machine's; each node's network is new, so its ports are free. Raises EngineError.
    """
    compose_plugin.ensure_compose()
    holders = list_holders(project)
    with tempfile.TemporaryDirectory(prefix="drydock-preflight-") as folder, ExitStack() as stack:
        path = Path(folder, "compose.yaml")
        path.write_text(format_yaml({"services": holders, "networks": project["networks"]}))
        compose = ("docker", "compose", "--project-name", Path(folder).name.lower(), "--file", str(path))
        stack.callback(_run_engine_command, (*compose, "down"))
        _run_engine_command((*compose, "up", "--detach"))
        inside = [
            _join_holder_network(
                request, _run_engine_command((*compose, "ps", "--quiet", f"{HOLDER}{name_of(request.node)}"))
            )
            for request in requests
        ]
        with ThreadPoolExecutor(max(1, len(inside))) as pool:
            return {
                request.node: answer for request, answer in zip(requests, pool.map(_ask_locally, inside), strict=True)
            }


def list_holders(project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the services that hold a node's network. They publish no port, which a running topology may have."""
    return {
        name: {key: value for key, value in service.items() if key != "ports"}
        for name, service in project["services"].items()
        if name.startswith(HOLDER)
    }


def _join_holder_network(request: NodeRequest, holder: str) -> NodeRequest:
    """Return what is asked of a node whose network a container holds."""
    words = list(request.container)
    if "--network" in words:
        words[words.index("--network") + 1] = f"container:{holder.strip()}"
    return request._replace(container=tuple(words))


def _run_engine_command(command: Sequence[str]) -> str:
    """Return what a command of the engine printed. Raises EngineError."""
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        hint = "a topology that runs has the nodes' addresses: `topology down` stops it"
        raise EngineError(
            f"{' '.join(command[-3:])}: exit {result.returncode}: {shorten_machine_text(result.stderr)}", hint=hint
        )
    return result.stdout


def _parse_node_answer(text: str) -> NodeResponse | str:
    try:
        return read_answer(text)
    except ValueError as error:
        return f"an answer that cannot be read: {shorten_machine_text(str(error))}"
