"""Texts of a topology as words of the entrypoint: goals, names, addresses. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from math import ceil
from pathlib import PurePosixPath

from drydock.core.errors import InputError
from drydock.model.running import MODELS
from drydock.oci.reference import OCI, parse_reference
from drydock.run.container import BUCKETS, parse_numbers
from drydock.topology.ports import HIGHEST
from drydock.topology.topology_records import Goals, Group

DEVICES = "--devices"
_PARALLEL = {"--tensor-parallel-size": "tp", "--pipeline-parallel-size": "pp", "--data-parallel-size": "dp"}
INTENTS = {"input": "--input-range", "output": "--output-range"}

_NAME = re.compile(
    r"(?=.{1,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*(?!(\d+|0x[0-9a-f]*)\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
    re.ASCII | re.IGNORECASE,
)
"""A host's name (RFC 1123). Resolvers read one whose last part is a number as an IPv4 address (WHATWG URL, 3.5)."""


def is_ip(address: str) -> bool:
    """Return whether an address is a number, to which sockets can bind, and not a name."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def explain_bad_address(address: str) -> str:
    """Return what a node must have instead of an address that other nodes cannot reach; empty if it is right."""
    if _NAME.fullmatch(address):
        return _REACHED if f".{address.lower()}".endswith(".localhost") else ""
    if not is_ip(address):
        return "a host name or an IP address"
    ip = ipaddress.ip_address(address)
    if ip.version == 6:  # noqa: PLR2004 - of IP
        return "an IPv4 address: IPv6 addresses are not supported yet"
    nowhere = ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip == _BROADCAST
    return _REACHED if nowhere else ""


_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
_REACHED = "an address at which other nodes reach it"


def make_node_url(address: str, port: int) -> str:
    """Return the URL of a server."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def choose_served_name(model: str) -> str:
    """Return the name that clients use: a hub id, or the last part of a folder, an address or an image's name."""
    if model.startswith(OCI):
        return PurePosixPath(parse_reference(model.removeprefix(OCI)).repository).name
    return PurePosixPath(model).name if model.startswith(("/", ".", *BUCKETS)) else model


def locate_model(model: str) -> str:
    """Return the model as a container knows it: a folder or image is mounted where the image's user can read it."""
    return f"{MODELS}/{choose_served_name(model)}" if model.startswith(("/", OCI)) else model


def rewrite_folder(text: str, folder: str, to: str) -> str:
    """Write another path for a folder where a text names it or what is below it, but not where it is part of a name."""
    if folder == to or not folder.startswith("/"):
        return text
    return re.sub(rf"""(?<![^\s="'(\[,:]){re.escape(folder.rstrip("/"))}(?![^\s/"')\],:;])""", lambda _: to, text)


def list_goal_flags(goals: Goals, group: Group) -> dict[str, str]:
    """Return the goals as flags. Each request visits one server of a role, so these share the concurrency equally."""
    flags = {flag: f"{r[0]},{r[1]}" for name, flag in INTENTS.items() if (r := getattr(goals, name))}
    if goals.concurrency:
        flags["--concurrency"] = str(ceil(goals.concurrency / group.replicas))
    return flags | ({"--optimize": goals.optimize} if goals.optimize else {})


def without_flag(words: Sequence[str], name: str) -> tuple[str, ...]:
    """Return words without a flag and its values: `--devices 4-5` and `--devices=4-5` alike."""
    kept: list[str] = []
    is_value = False
    for word in words:
        if not is_value and word.partition("=")[0] != name:
            kept.append(word)
        is_value = not is_value and word == name
    return tuple(kept)


def choose_user_devices(group: Group, there: Sequence[int]) -> tuple[int, ...]:
    """Return the devices of a node that a group uses: those of --devices, which its plan checks, or all.

    Raises InputError.
    """
    text = _find_group_flag(group, DEVICES)
    if text and not there:
        raise InputError(f"group {group.name}: --devices {text}: its nodes have no devices", hint="remove it")
    return parse_numbers(text) if text else tuple(there)


def read_user_port(group: Group, name: str) -> int:
    """Return the port that a group's flags or environment set, or 0. Raises InputError if it is not a port."""
    text = str(group.env[name]) if name in group.env else _find_group_flag(group, name)
    if text is None:
        return 0
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 1 <= int(text) <= HIGHEST:
        raise InputError(f"group {group.name}: {name}: found {text!r}, expected a port from 1 to {HIGHEST}")
    return int(text)


def _find_group_flag(group: Group, name: str) -> str | None:
    """Return the last value of a flag; None if the group does not have it."""
    last_value = None
    for index, word in enumerate(group.flags):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == name:
            last_value = value if equals else "".join(group.flags[index + 1 : index + 2])
    return last_value


def describe_split(argv: Sequence[str]) -> str:
    """Return the parallelism of a command in short: `tp8 pp2`, with `ep` if each rank has whole experts."""
    sizes = {short: read_flag_number(argv, flag) for flag, short in _PARALLEL.items()}
    parts = [f"{short}{size}" for short, size in sizes.items() if size > 1]
    return " ".join([*parts, *(["ep"] if "--enable-expert-parallel" in argv else [])]) or "tp1"


def read_flag_number(argv: Sequence[str], flag: str) -> int:
    """Return the number after a flag of a planned command; 1 without the flag."""
    return int(argv[argv.index(flag) + 1]) if flag in argv else 1
