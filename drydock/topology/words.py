"""Texts of a topology as words of the entrypoint: goals, names, addresses. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from math import ceil
from pathlib import PurePosixPath

from drydock.core.errors import InputError
from drydock.run.container import MODELS, parse_numbers
from drydock.topology.records import Goals, Group

INTENTS = {"input": "--input-range", "output": "--output-range"}


def is_ip(address: str) -> bool:
    """Return whether an address is a number, to which sockets can bind, and not a name."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def url(address: str, port: int) -> str:
    """Return the URL of a server."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def served_name(model: str) -> str:
    """Return the name that clients use: a hub id, or a folder's last part."""
    return PurePosixPath(model).name if model.startswith(("/", ".")) else model


def in_container(model: str) -> str:
    """Return the model as a container knows it: a folder is mounted where the image's user can read it."""
    return f"{MODELS}/{served_name(model)}" if model.startswith("/") else model


def goal_words(goals: Goals, group: Group) -> dict[str, str]:
    """Return the goals as flags. Each request visits one server of a role, so these share the concurrency equally."""
    found = {flag: f"{r[0]},{r[1]}" for name, flag in INTENTS.items() if (r := getattr(goals, name))}
    if goals.concurrency:
        found["--concurrency"] = str(ceil(goals.concurrency / group.replicas))
    return found | ({"--optimize": goals.optimize} if goals.optimize else {})


def user_devices(group: Group, there: Sequence[int]) -> tuple[int, ...]:
    """Return the devices of a node that a group uses: those of --devices, which its plan checks, or all."""
    text = _flag(group, "--devices")
    return parse_numbers(text) if text else tuple(there)


def user_number(group: Group, name: str) -> int:
    """Return the number that a group's flags or environment set; 0 if none. Raises InputError for another text."""
    text = str(group.env[name]) if name in group.env else _flag(group, name)
    if text and not (text.isascii() and text.isdigit()):
        raise InputError(f"group {group.name}: {name}: found {text!r}, expected a port")
    return int(text or 0)


def _flag(group: Group, name: str) -> str:
    """Return the last value of a flag."""
    found = ""
    for index, word in enumerate(group.flags):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == name:
            found = value if equals else "".join(group.flags[index + 1 : index + 2])
    return found
