"""A folder of recorded hosts → a topology.yaml to begin with. IO."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from drydock.config.validation import made
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import loads, read_bounded
from drydock.model.record import IDENTIFIER_AT_MOST
from drydock.topology.read import HOST_AT_MOST, unreadable
from drydock.topology.records import Topology

HOST_FILE = "host.json"
_HEAD = """\
# `./inv topology init` wrote this file. Correct the addresses, and group the nodes; docs/topology.md explains each key.
"""
_HINT = "on each node: docker run … IMAGE facts --record /cache/host.json"


def find_hosts(folder: Path) -> dict[str, Path]:
    """Return the recorded hosts in a folder by name: NAME.json, and NAME/host.json.

    JSON of something else is left out, and logged. Raises InputError for what cannot be read, such as half a file.
    """
    found: dict[str, Path] = {}
    for path in sorted(_candidates(folder), key=_name):
        if _is_host(path) and found.setdefault(_name(path), path) != path:
            raise InputError(f"{path}: a second host with the name {_name(path)}", hint="rename one of the files")
    if not found:
        raise InputError(
            f"--hosts {folder}: found no recorded host, expected NAME.json or NAME/{HOST_FILE}", hint=_HINT
        )
    return found


def _candidates(folder: Path) -> list[Path]:
    """Return the files that could be recorded hosts, with links to nothing."""
    entries = [*folder.iterdir()] if os.path.isdir(folder) else []  # noqa: PTH112 - Path.is_dir raises for a long name
    below = [entry / HOST_FILE for entry in entries if os.path.lexists(entry / HOST_FILE)]
    return [*(entry for entry in entries if entry.suffix == ".json" and not entry.is_dir()), *below]


def _is_host(path: Path) -> bool:
    """Return whether a file is a recorded host. Raises InputError if that cannot be known."""
    problem = unreadable(path)
    if not problem:
        return True
    try:
        loads(read_bounded(path, HOST_AT_MOST))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {problem}", hint=f"{_HINT}; or remove the file") from error
    log(f"{path}: {problem}; it is left out")
    return False


def _name(path: Path) -> str:
    """Return a node's name: that of the file, or of its folder for host.json, as an identifier."""
    text = path.parent.name if path.name == HOST_FILE else path.stem
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")[:IDENTIFIER_AT_MOST].strip("-.") or "node"


def text_of(hosts: dict[str, Path], folder: Path, model: str, target: str) -> str:
    """Return a topology in `folder`, in which every node is a server of its own."""
    nodes = [
        {"name": name, "address": name, "host": os.path.relpath(path, folder)} for name, path in sorted(hosts.items())
    ]
    lines = [
        _HEAD,
        _line({"model": model}, "a hub id, or a folder that every node has"),
        _line({"target": target}, "a variant, or image: registry/name@sha256:… instead"),
        "nodes: # address: where other nodes reach it, best an IP address\n",
        *(f"  - {_flow(node)}\n" for node in nodes),
        "groups: # role serve, prefill or decode; nodes: of one replica\n",
        f"  - {_flow({'name': 'serve', 'role': 'serve', 'replicas': len(nodes), 'nodes': 1})}\n",
        f"router: {_flow({'node': nodes[0]['name'], 'port': 30000})}\n",
        "goals: {} # input: [16, 4000], output: [16, 500], concurrency: 32, optimize: throughput\n",
    ]
    return "".join(lines)


def _flow(value: Mapping[str, object]) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip()


def _line(value: Mapping[str, object], remark: str) -> str:
    return f"{yaml.safe_dump(value, width=1000).strip()} # {remark}\n"


def write(path: Path, text: str) -> None:
    """Write a new topology. Raises InputError if there is a file, or if the text would not be read as a topology."""
    made(Topology, str(path), yaml.safe_load(text))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise InputError(f"{path}: exists, and is not overwritten", hint="name another file with --output") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def targets(found: Sequence[str]) -> str:
    """Return the one variant that fits every host. Raises InputError if they need several."""
    several = sorted(set(found))
    if len(several) > 1:
        raise InputError(f"the hosts need different images: {', '.join(several)}", hint="choose one with --target")
    return several[0]
