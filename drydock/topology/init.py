"""A folder of recorded hosts → a topology.yaml to begin with. IO."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import yaml

from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import make_record
from drydock.core.console import log, spell_commands
from drydock.core.errors import HostError, InputError, suggest_nearest
from drydock.core.files import parse_any_json, read_bounded
from drydock.core.project import Project
from drydock.model.record import IDENTIFIER_AT_MOST
from drydock.run import auto
from drydock.run.entrypoint import DoesNotFitError
from drydock.topology.planned_file import plan_read_topology
from drydock.topology.topology_arguments import describe_split, explain_bad_address, is_ip
from drydock.topology.topology_file import HOST_AT_MOST, Read, explain_unreadable_host
from drydock.topology.topology_records import Group, Node, Topology

HOST_FILE = "host.json"
_HEAD = """\
# `./inv topology init` wrote this file. Check the addresses, and group the nodes; docs/topology.md explains each key.
"""
SHAPES: Mapping[str, tuple[int, int]] = {"1p1d": (1, 1), "2p1d": (2, 1)}
"""Shape → servers that compute prompts, and that compute answers."""
_LENGTH = "--max-model-len"
_WRITTEN = {"name", "role", "replicas", "nodes"}
_HINT = "on each node: docker run … IMAGE facts --record /cache/host.json"


def find_hosts(folder: Path) -> dict[str, Path]:
    """Return the recorded hosts in a folder by name: NAME.json, and NAME/host.json.

    Other JSON files are left out and logged. Raises InputError for a file that cannot be read, such as half a file.
    """
    hosts: dict[str, Path] = {}
    for path in sorted(_list_host_files(folder), key=_make_node_name):
        if _is_host(path) and hosts.setdefault(_make_node_name(path), path) != path:
            raise InputError(
                f"{path}: a second host with the name {_make_node_name(path)}", hint="rename one of the files"
            )
    if not hosts:
        raise InputError(f"--root {folder}: found no recorded host, expected NAME.json or NAME/{HOST_FILE}", hint=_HINT)
    return hosts


def _list_host_files(folder: Path) -> list[Path]:
    """Return the files that could be recorded hosts, with links to nothing."""
    entries = [*folder.iterdir()] if os.path.isdir(folder) else []  # noqa: PTH112 - Path.is_dir raises for a long name
    below = [entry / HOST_FILE for entry in entries if os.path.lexists(entry / HOST_FILE)]
    return [*(entry for entry in entries if entry.suffix == ".json" and not entry.is_dir()), *below]


def _is_host(path: Path) -> bool:
    """Return whether a file is a recorded host. Raises InputError if that cannot be known."""
    problem = explain_unreadable_host(path)
    if not problem:
        return True
    try:
        parse_any_json(read_bounded(path, HOST_AT_MOST))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {problem}", hint=f"{_HINT}; or remove the file") from error
    log(f"{path}: {problem}; it is left out")
    return False


def _make_node_name(path: Path) -> str:
    """Return a node's name: that of the file, or of its folder for host.json, as an identifier."""
    text = path.parent.name if path.name == HOST_FILE else path.stem
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")[:IDENTIFIER_AT_MOST].strip("-.") or "node"


class Split(NamedTuple):
    """How servers are spread over the nodes."""

    groups: tuple[Group, ...]
    remarks: tuple[str, ...] = ()
    """What fits and what does not, or why the plan was not asked; empty if no model is named."""


def make_shape_groups(shape: str, nodes: int, span: int = 1) -> tuple[Group, ...]:
    """Return the groups of a shape, each server on `span` nodes; all servers are alike without a shape.

    Raises InputError for an unknown shape, and for fewer nodes than its servers take.
    """
    if not shape:
        return (Group(name="serve", replicas=nodes // span, nodes=span),)
    if shape not in SHAPES:
        raise InputError(f"--shape {shape}: unknown", hint=suggest_nearest(shape, SHAPES))
    prefills, decodes = SHAPES[shape]
    if nodes < (prefills + decodes) * span:
        expected = f"expected {(prefills + decodes) * span}, {'one' if span == 1 else span} for each server"
        raise InputError(f"--shape {shape}: found {nodes} recorded hosts, {expected}", hint=_HINT)
    return (
        Group(name="prefill", role="prefill", replicas=prefills, nodes=span),
        Group(name="decode", role="decode", replicas=decodes, nodes=span),
    )


def choose_split(project: Project, topology: Topology, hosts: Mapping[str, Path], shape: str) -> Split:
    """Return the groups whose servers have the fewest nodes on which the model fits, as `topology plan` decides it.

    `topology` has one node for each server; `hosts` are the recorded hosts of its nodes. If the plan cannot be asked,
    such as for a model that this machine cannot read, the groups stay, and the remark says why. Raises DoesNotFitError
    if no number of nodes is enough.
    """
    count = len(topology.nodes)
    servers = sum(group.replicas for group in topology.groups) if shape else 1
    spans = [span for span in (1, 2, 4, 8, 16) if span * servers <= count]
    asked = topology.model_copy(update={"nodes": _number_addresses(topology.nodes)})
    chosen: tuple[Group, ...] = ()
    remarks: list[str] = []
    problem: DoesNotFitError | None = None
    for span in spans:
        groups = make_shape_groups(shape, count, span)
        try:
            argv = _plan_first_command(project, asked.model_copy(update={"groups": groups}), hosts)
        except DoesNotFitError as error:
            problem = problem or error
            remarks.append(f"too small: {_describe_groups(groups)}")
        except (InputError, HostError) as error:
            if not problem and not chosen:
                why = " ".join(error.problems[0].split())  # a comment is a line
                return Split(topology.groups, (f"whether the model fits was not asked: {why}",))
            break  # the image serves on fewer nodes only
        else:
            remarks.append(f"{'fits too' if chosen else 'fits'}: {_describe_groups(groups)} ({_describe_server(argv)})")
            chosen = chosen or groups
    if problem and not chosen:
        raise DoesNotFitError(*problem.problems, hint=f"{problem.hint}; nothing was written")
    return Split(chosen, tuple(remarks))


def _number_addresses(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Return nodes with imagined addresses (RFC 5737), so that a plan can be asked before names have an address."""
    return tuple(node.model_copy(update={"address": f"192.0.2.{place % 254 + 1}"}) for place, node in enumerate(nodes))


def _plan_first_command(project: Project, topology: Topology, hosts: Mapping[str, Path]) -> tuple[str, ...]:
    """Return the command of the first rank. Raises what planning raises."""
    read = Read(topology, YamlDocument("", {}, {}), dict(hosts))
    return plan_read_topology(project, read).replicas[0].ranks[0].argv


def _describe_server(argv: Sequence[str]) -> str:
    """Return a server's split, and its length if the plan's command sets one: it is less than the model's own."""
    length = f", no more than {argv[argv.index(_LENGTH) + 1]} tokens" if _LENGTH in argv else ""
    return f"{describe_split(argv)}{length}"


def _describe_groups(groups: Iterable[Group]) -> str:
    return " and ".join(f"{group.name} {{replicas: {group.replicas}, nodes: {group.nodes}}}" for group in groups)


def order_hosts(names: Iterable[str], shape: str) -> list[str]:
    """Return the names of hosts in the order in which groups take them: numbers count, and a role in a name counts.

    `node10` comes after `node2`. With a shape, hosts that are named after prefill come first, those after decode last:
    groups take nodes in their order.
    """
    return sorted(names, key=lambda name: (_place_of_role(name) if shape else 0, _make_natural_key(name)))


def _place_of_role(name: str) -> int:
    """Return 0 for a host that is named after prefill, 2 after decode, 1 after neither."""
    return 0 if _PREFILL.search(name) else 2 if _DECODE.search(name) else 1


def _make_natural_key(name: str) -> list[str | int]:
    """Return text and numbers in turn, text first: `node2a` is node, 2, a."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


_PREFILL = re.compile(r"(^|[^a-z])(prefill|prompt|p)([^a-z]|$)")
_DECODE = re.compile(r"(^|[^a-z])(decode|decoder|d)([^a-z]|$)")
"""Names of machines with a role in them: prefill-0, gpu-d1."""


def find_named_addresses(nodes: Sequence[Mapping[str, str]], shape: str) -> list[str]:
    """Return the nodes whose address `plan` refuses until it is an IPv4 address: servers of a shape exchange caches."""
    return [node["name"] for node in nodes if shape and not is_ip(node["address"])]


def make_topology_nodes(hosts: Mapping[str, Path], folder: Path) -> list[dict[str, str]]:
    """Return the nodes of a topology in `folder`, in the order of `hosts`.

    Addresses are what this machine knows the names by, or the names.
    """
    return [
        {"name": name, "address": _resolve_host_address(name), "host": os.path.relpath(path, folder)}
        for name, path in hosts.items()
    ]


def _resolve_host_address(name: str) -> str:
    """Return the only IPv4 address by which other nodes can reach a host; its name if there is none, or several."""
    try:
        answers = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return name
    addresses = {str(answer[4][0]) for answer in answers}
    usable = [address for address in addresses if not explain_bad_address(address)]
    return usable[0] if len(addresses) == len(usable) == 1 else name


def format_topology(nodes: Sequence[Mapping[str, str]], split: Split, model: str, target: str) -> str:
    """Return a topology with its router on the first node."""
    lines = [
        spell_commands(_HEAD),
        _format_commented_line(
            {"model": model}, "a hub id, oci://…@sha256:…, s3:// or gs://, or a folder that every node has"
        ),
        _format_commented_line({"target": target}, "a variant, or image: registry/name@sha256:… instead"),
        _format_commented_line({"api_key": "required"}, "or none, if everyone who reaches a server may use it"),
        "nodes: # address: where other nodes reach it, best an IP address\n",
        *(f"  - {_format_flow_mapping(node)}\n" for node in nodes),
        "groups: # role serve, prefill or decode; nodes: of one replica\n",
        *(f"  - {_format_flow_mapping(group.model_dump(include=_WRITTEN))}\n" for group in split.groups),
        *(f"  # {remark}\n" for remark in split.remarks),
        f"router: {_format_flow_mapping({'node': nodes[0]['name'], 'port': 30000})}\n",
        "goals: {} # input: [16, 4000], output: [16, 500], concurrency: 32, optimize: throughput\n",
    ]
    return "".join(lines)


def _format_flow_mapping(value: Mapping[str, object]) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip()


def _format_commented_line(value: Mapping[str, object], remark: str) -> str:
    return f"{yaml.safe_dump(value, width=1000).strip()} # {remark}\n"


def make_topology(name: str, text: str) -> Topology:
    """Return what a text says. Raises InputError if it would not be read as a topology."""
    return make_record(Topology, name, yaml.safe_load(text))


def write_topology(path: Path, text: str) -> None:
    """Write a new topology. Raises InputError if there is a file, or if the text would not be read as a topology."""
    make_topology(str(path), text)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise InputError(f"{path}: exists, and is not overwritten", hint="name another file with --output") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def choose_common_target(variants: Sequence[str]) -> str:
    """Return the one variant that fits every host. Raises InputError if they need several."""
    several = sorted(set(variants))
    if len(several) > 1:
        raise InputError(f"the hosts need different images: {', '.join(several)}", hint="choose one with --target")
    return several[0]


def choose_fitting_variant(project: Project, hosts: dict[str, Path]) -> str:
    """Return the variant that fits every host, as --target auto chooses it."""
    different = {path.read_bytes(): path for path in hosts.values()}
    with ThreadPoolExecutor() as pool:
        return choose_common_target(
            [*pool.map(lambda path: auto.resolve_target(project, auto.AUTO, str(path)).id, different.values())]
        )
