"""The secrets of a topology: the key of its clients, and what the ranks of a server share. IO.

Each is in a file of its own, NAME.env with the one line NAME=VALUE, which only its owner can read. A value is made once
and never printed. No plan and no rendered file has it.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import explain_unwritable, make_folder, open_regular
from drydock.run.access import API_KEY, KEY_AT_MOST
from drydock.topology.plan_model import Replica, TopologyPlan

GROUP_SECRET = "DRYDOCK_GROUP_SECRET"  # noqa: S105 - its name
"""With it, ranks of one server believe each other: entrypoints/serve/rank_protocol.py."""
BYTES = 32
"""Of a value that is made here."""
_VALUE = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""What can follow Bearer in a header (RFC 6750, b64token). Every reader of env files takes it as it is."""


def list_replica_secrets(plan: TopologyPlan, replica: Replica) -> tuple[str, ...]:
    """Return the names of the secrets that a server's ranks get."""
    return (*list_router_secrets(plan), *((GROUP_SECRET,) if len(replica.ranks) > 1 else ()))


def list_router_secrets(plan: TopologyPlan) -> tuple[str, ...]:
    """Return the names of the secrets that the router gets, and every server."""
    return (API_KEY,) if plan.api_key == "required" else ()


def list_secret_names(plan: TopologyPlan) -> tuple[str, ...]:
    """Return the names of all secrets of a plan."""
    return tuple(dict.fromkeys(name for replica in plan.replicas for name in list_replica_secrets(plan, replica)))


def make_secret_file_name(name: str) -> str:
    """Return the name of a secret's file."""
    return f"{name}.env"


def ensure_secrets(folder: Path, secret_names: Iterable[str]) -> dict[str, str]:
    """Return name → value from the files in a folder; an absent one is made, of the shell's variable or at random.

    Raises InputError for a file that others can read, or that has something else.
    """
    return {name: _read_secret_file(folder / make_secret_file_name(name), name) for name in secret_names}


def _read_secret_file(path: Path, name: str) -> str:
    with explain_unwritable(path.parent):
        if not os.path.lexists(path):
            _make_secret_file(path, name)
        with open_regular(path) as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(KEY_AT_MOST).decode(errors="replace")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"{path}: other users can read it", hint=f"chmod 600 {path}")
    written_name, _, value = text.strip().partition("=")
    if written_name != name or not _VALUE.fullmatch(value):
        raise InputError(f"{path}: expected one line, {name}, = and its value", hint=_HINT)
    return value


_HINT = "a value has letters, digits and ._~+/- only, and may end with =; without the file, one is made"


def _make_secret_file(path: Path, name: str) -> None:
    """Write a new file with mode 0600. Raises InputError if the shell's variable is no key."""
    value = os.environ.get(name)
    if value and not _VALUE.fullmatch(value):
        raise InputError(f"{name}: a value that clients cannot send", hint=_HINT)
    make_folder(path.parent)
    path.touch(0o600, exist_ok=False)
    path.write_text(f"{name}={value or secrets.token_hex(BYTES)}\n")
    log(f"made {path}: {name} {'of the shell' if value else 'at random'}")
