"""topology.yaml → a Topology that fits together. IO: reads the file and its recorded hosts, in bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from drydock.config.strict_yaml import YamlDocument, read_yaml
from drydock.config.validation import Problem, combine_problems, validate_document
from drydock.core.errors import InputError, suggest_nearest
from drydock.core.files import parse_json_object, read_bounded
from drydock.oci.reference import OCI
from drydock.run.access import HOST_FLAG, is_exposed, value_of
from drydock.run.container import check_bucket
from drydock.run.entrypoint import PROFILE
from drydock.run.user_options import is_secret_value
from drydock.topology.topology_arguments import DEVICES, explain_bad_address
from drydock.topology.topology_records import Group, Topology
from entrypoints.core.redact import is_secret, redact_argv
from entrypoints.core.text import VARIABLE_NAME

HOST_AT_MOST = 16 << 20
"""Bytes of a recorded host, as entrypoints/facts/record.py, SIZE_AT_MOST."""
RECORDED = frozenset({"commands", "files", "links"})
"""Keys of a recorded host, of which each has at least one."""
_OF_THE_PLAN = frozenset(
    {"--model", "--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--headless", "--data-parallel-start-rank"}
)
"""Flags that the plan sets for each rank."""
_OF_THE_VERB = frozenset({"--root", "--html", "--json", "--diff", "--help", "-h"})
"""Flags of the entrypoint's `plan`, which would read and write files of this machine. Servers do not take them."""
_BY_DIGEST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}")
_SUPER_POD = re.compile(r"^[ \t]*Super Pod ID[ \t]*:[ \t]*(\w+)[ \t\r]*$", re.MULTILINE)
_PAIR = {"prefill": "decode", "decode": "prefill"}


class Read(NamedTuple):
    """A topology, and where its recorded hosts lie."""

    topology: Topology
    document: YamlDocument
    hosts: dict[str, Path]
    """Node → its recorded host."""


def read_topology(path: Path) -> Read:
    """Read a topology and check that it fits together. Raises InputError with every problem."""
    document = read_yaml(path, str(path))
    topology = validate_document(Topology, document)
    hosts = {node.name: path.parent / node.host for node in topology.nodes}
    problems = [
        *_check_model(topology, document),
        *_check_what(topology, document),
        *_check_nodes(topology, document),
        *_check_groups(topology, document),
        *_check_roles(topology, document),
        *_check_router(topology, document),
        *_check_goals(topology, document),
        *_check_hosts(topology, document, hosts),
    ]
    if problems:
        raise combine_problems(problems)
    return Read(topology, document, hosts)


def _check_model(topology: Topology, document: YamlDocument) -> Iterator[Problem]:
    """Check that the model is a hub id, a folder, an image by digest or a folder of a bucket."""
    if not topology.model or topology.model.startswith("-"):
        yield document.problem(("model",), f"found {topology.model!r}, expected a folder or a hub id"), ""
    if topology.model.startswith((".", "~")):
        text = f"found {topology.model!r}, expected a hub id, or the absolute path of a folder that every node has"
        yield document.problem(("model",), text), "`--model FOLDER` says where the model is on this machine"
    if topology.model.startswith("/") and (topology.model.strip("/") == "" or ".." in topology.model.split("/")):
        yield document.problem(("model",), f"found {topology.model!r}, expected the path of a folder without .."), ""
    try:
        check_bucket(topology.model, "")
        if topology.model.startswith(OCI):
            from drydock.inputs import model_images  # noqa: PLC0415 - it imports what speaks to servers

            model_images.by_digest(topology.model)
    except InputError as error:
        yield document.problem(("model",), error.problems[0]), error.hint


def _check_what(topology: Topology, document: YamlDocument) -> Iterator[Problem]:
    """Check that exactly one of target and image, and the API key are named, and images by digest."""
    if bool(topology.target) == bool(topology.image):
        named_fields = "both target and image" if topology.target else "neither target nor image"
        hint = "target names a variant of the matrix, image a built image by digest"
        yield document.problem((), f"found {named_fields}, expected one of them"), hint
    if topology.api_key is None:
        text = "found no api_key: everyone who reaches the router or a server could use it"
        yield document.problem((), text), "write `api_key: required`; `api_key: none` says that no key is wanted"
    images = {("image",): topology.image, ("router", "image"): topology.router and topology.router.image}
    for where, image in images.items():
        if image and not _BY_DIGEST.fullmatch(image):
            text = f"found {image!r}, expected an image by digest, registry/name@sha256:…"
            hint = "a tag may name another image on each node; ./inv image inspect prints digests"
            yield document.problem(where, text), hint


def _check_nodes(topology: Topology, document: YamlDocument) -> Iterator[Problem]:
    if not topology.nodes:
        yield document.problem(("nodes",), "found no node, expected at least one"), "./inv topology init writes them"
    for field in ("name", "address"):
        for index, value in _find_repeats(getattr(node, field) for node in topology.nodes):
            yield document.problem(("nodes", index, field), f"duplicate {field} {value!r}"), "each node has its own"
    for index, node in enumerate(topology.nodes):
        if expected := explain_bad_address(node.address):
            text = f"found {node.address!r}, expected {expected}"
            hint = "ports belong in network.port_base; the host of a name needs an IPv4 address too, not only IPv6"
            yield document.problem(("nodes", index, "address"), text), hint


def _check_groups(topology: Topology, document: YamlDocument) -> Iterator[Problem]:
    if not topology.groups:
        yield document.problem(("groups",), "found no group, expected at least one"), "a group is one or more servers"
    for index, name in _find_repeats(group.name for group in topology.groups):
        yield document.problem(("groups", index, "name"), f"duplicate name {name!r}"), "each group has its own"
    node_names = {node.name for node in topology.nodes}
    for index, group in enumerate(topology.groups):
        for place, name in enumerate(group.on):
            if name not in node_names:
                where = ("groups", index, "among", place)
                yield document.problem(where, f"unknown node {name!r}"), suggest_nearest(name, node_names)
        for place, name in _find_repeats(group.on):
            yield document.problem(("groups", index, "among", place), f"duplicate node {name!r}"), ""
        yield from _check_devices(index, group, document)
        yield from _check_fixed(index, group, document)


def _check_devices(index: int, group: Group, document: YamlDocument) -> Iterator[Problem]:
    """Check that a group's devices are named once, and in one place."""
    if isinstance(group.devices, tuple) and len({*group.devices}) < len(group.devices):
        yield document.problem(("groups", index, "devices"), "found a number twice, expected each once"), ""
    if group.devices is not None and value_of(group.flags, DEVICES):
        text = f"found devices, and {DEVICES} in flags, expected one of them"
        yield (
            document.problem(("groups", index, "devices"), text),
            f"remove {DEVICES}: servers can share a node by devices",
        )


def _check_fixed(index: int, group: Group, document: YamlDocument) -> Iterator[Problem]:
    """Check what the user fixes for a group."""
    if group.flags and not group.flags[0].startswith("-"):
        text = f"found {group.flags[0]!r}, expected a flag of vLLM or drydock first"
        yield document.problem(("groups", index, "flags", 0), text), 'write ["--flag", "value"]'
    for place, word in enumerate(group.flags):
        if word.partition("=")[0].replace("_", "-") in _OF_THE_PLAN:
            text = f"{word} differs between nodes, so the plan sets it"
            yield document.problem(("groups", index, "flags", place), text), "remove it; `nodes` says how many"
        if word.partition("=")[0] in _OF_THE_VERB:
            text = f"{word} is a flag of drydock's plan, which servers do not take"
            yield document.problem(("groups", index, "flags", place), text), "remove it"
    host = value_of(group.flags, HOST_FLAG)
    if host and not is_exposed(host):
        text = f"{HOST_FLAG} {host}: neither the router nor another node could connect to the server"
        yield document.problem(("groups", index, "flags"), text), "remove it: servers listen on their node's address"
    for name in dict.fromkeys(_find_secrets(group)):
        text = f"{name} {'is' if is_secret(name) else 'has'} a secret, which does not belong in this file"
        hint = "plans and what is rendered from them are kept in files; docs/topology.md says where keys belong"
        yield document.problem(("groups", index), text), hint
    yield from _check_variables(index, group, document)


def _find_secrets(group: Group) -> Iterator[str]:
    """Yield each variable and flag that is a secret, or whose value has one; JSON may name tokens that are text."""
    yield from (name for name, value in group.env.items() if is_secret_value(name, str(value)))
    flag = ""
    for word, redacted_word in zip(group.flags, redact_argv(group.flags), strict=True):
        flag = word.partition("=")[0] if word.startswith("-") else flag
        if is_secret(flag) or (redacted_word != word and "{" not in word):
            yield flag


def _check_variables(index: int, group: Group, document: YamlDocument) -> Iterator[Problem]:
    """Check the variables that the user fixes: their names, and that each value reaches the container as written."""
    for name, value in group.env.items():
        where = ("groups", index, "env", name)
        source_text = document.places[where].source
        if not VARIABLE_NAME.fullmatch(name):
            yield document.problem(where, "not an environment variable"), "vLLM's flags belong in flags"
        if name == PROFILE:
            yield document.problem(where, "the image has its own profile, by which the plan is made"), "remove it"
        if isinstance(value, float) and str(value) != source_text:
            text = f"found {source_text}, which YAML reads as {value}, expected text"
            yield document.problem(where, text), f'quote it: "{source_text}"'


def _check_roles(topology: Topology, document: YamlDocument) -> Iterator[Problem]:
    """Check that prefill and decode come together, and not with whole servers: one router cannot do both."""
    first = {group.role: index for index, group in reversed([*enumerate(topology.groups)])}
    for role, partner in _PAIR.items():
        if role in first and partner not in first:
            text = f"a group with role {role}, but none with role {partner}"
            yield document.problem(("groups", first[role], "role"), text), f"add a {partner} group, or use role serve"
    if "serve" in first and len(first) > 1:
        text = "a group with role serve next to prefill and decode"
        hint = "vllm-router sends to whole servers or to prefill and decode: write two topologies"
        yield document.problem(("groups", first["serve"], "role"), text), hint


def _check_router(topology: Topology, document: YamlDocument) -> Iterator[Problem]:
    names = [node.name for node in topology.nodes]
    if topology.router and topology.router.node not in names:
        where = ("router", "node")
        yield (
            document.problem(where, f"unknown node {topology.router.node!r}"),
            suggest_nearest(topology.router.node, names),
        )
    if topology.router is None and any(group.role != "serve" for group in topology.groups):
        text = "prefill and decode groups without a router: no server answers clients by itself"
        yield document.problem((), text), "add router: {node: NAME}"


def _check_goals(topology: Topology, document: YamlDocument) -> Iterator[Problem]:
    for field in ("input", "output"):
        lengths = getattr(topology.goals, field)
        if lengths and lengths[0] > lengths[1]:
            text = f"found {list(lengths)}, expected the shortest first"
            yield document.problem(("goals", field), text), f"write [{lengths[1]}, {lengths[0]}]"


def _check_hosts(topology: Topology, document: YamlDocument, hosts: dict[str, Path]) -> Iterator[Problem]:
    """Check that each recorded host is one; two nodes may have the same, such as machines of one order."""
    problems: dict[Path, str] = {}
    for index, node in enumerate(topology.nodes):
        path = hosts[node.name]
        text = problems[path] if path in problems else problems.setdefault(path, explain_unreadable_host(path))
        if text:
            hint = "on the node: ./inv entrypoint --target auto -- facts --record host.json"
            yield document.problem(("nodes", index, "host"), f"{node.host}: {text}"), hint


def explain_unreadable_host(path: Path) -> str:
    """Return what is wrong with a recorded host; empty if nothing is."""
    try:
        record = parse_json_object(read_bounded(path, HOST_AT_MOST), "not a recorded host")
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except InputError as error:
        return str(error)
    return "" if record.keys() & RECORDED else f"not a recorded host: it has none of {', '.join(sorted(RECORDED))}"


def read_super_pod(path: Path) -> str:
    """Return the super pod of a recorded host, whose NPUs have links to each other; empty if no one recorded it.

    Source: vllm-ascend docs, pd_disaggregation_mooncake_multi_node: npu-smi info -t spod-info -i N -c M.
    """
    commands = parse_json_object(read_bounded(path, HOST_AT_MOST), str(path)).get("commands")
    items = commands.items() if isinstance(commands, dict) else ()
    texts = (
        str(result.get("stdout", "")) for words, result in items if "spod-info" in words and isinstance(result, dict)
    )
    numbers = sorted({number for text in texts for number in _SUPER_POD.findall(text)})
    return " and ".join(numbers)


def _find_repeats(values: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield each value that came before, with its place. Case does not matter, as in names of hosts."""
    earlier_values: set[str] = set()
    for index, value in enumerate(values):
        if value.lower() in earlier_values:
            yield index, value
        earlier_values.add(value.lower())
