"""A planned topology: which node runs which rank of which group, with its command, ports and reasons.

It prints as sorted JSON; every format is rendered from it and from nothing else.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from drydock.config.validation import make_record
from drydock.core.errors import InputError
from drydock.core.files import parse_json_object, read_bounded
from drydock.model.names import OneLine
from drydock.model.record import Count, Identifier, Record
from drydock.model.variant import Role
from drydock.topology.topology_records import ApiKey, Port

PLAN_AT_MOST = 64 << 20
"""Bytes of a plan as JSON; a thousand ranks have half of that."""


class Because(Record):
    """A choice of the plan, its reason, and the reasons against its neighbours."""

    setting: OneLine
    value: OneLine
    because: OneLine
    instead: tuple[OneLine, ...] = ()


class Rank(Record):
    """What one node runs for one replica of a group."""

    node: Identifier
    address: OneLine
    rank: Count
    """Of the replica's nodes, from 0; rank 0 answers clients."""
    devices: tuple[Count, ...] = ()
    """The devices' numbers on this node; empty for a CPU."""
    architecture: OneLine = ""
    """Of all its devices; empty if they differ, and for a CPU."""
    argv: tuple[OneLine, ...] = Field(min_length=1)
    """vLLM's command as the image's entrypoint plans it."""
    words: tuple[OneLine, ...] = Field(min_length=1)
    """The container's arguments (`serve MODEL …`), with which the entrypoint decides the same."""
    env: dict[str, str]
    """The container's environment."""
    ports: dict[Identifier, Port]
    """Purpose (api, status, master, rpc, ray, side-channel, kv) → port that this rank listens on.

    A purpose has the same port on every node, unless the user sets another. The first of several
    consecutive ports has the purpose's name, and the second is named side-channel-1.
    """
    before: tuple[tuple[OneLine, ...], ...] = ()
    """Commands that the entrypoint runs before `argv`: Ray's head."""


class Replica(Record):
    """One server of a group."""

    group: Identifier
    role: Role
    number: Count
    ranks: tuple[Rank, ...] = Field(min_length=1)
    reasons: tuple[Because, ...] = ()


class RouterPlan(Record):
    """The router's command."""

    node: Identifier
    address: OneLine
    port: Port
    argv: tuple[OneLine, ...]
    image: OneLine
    """By digest, or the name of the router's image that is not built yet."""
    name: Identifier = "router"
    """Of its container."""


class TopologyPlan(Record):
    """Everything that runs."""

    model: OneLine
    image: OneLine
    """By digest, or the name of a variant's image that is not built yet."""
    accelerator: Identifier
    variant: Identifier
    api_key: ApiKey
    """Whether clients must send a key. Its value is in no plan and no rendered file."""
    replicas: tuple[Replica, ...]
    router: RouterPlan | None = None
    reasons: tuple[Because, ...] = ()
    findings: tuple[OneLine, ...] = ()
    """What needs attention, each as one line with its id."""


def read_plan(file: Path) -> TopologyPlan:
    """Read what `topology plan --json` wrote. IO. Raises InputError, with the key of each problem."""
    try:
        return make_record(TopologyPlan, str(file), parse_json_object(read_bounded(file, PLAN_AT_MOST), str(file)))
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except InputError as error:
        hint = error.hint or "this version of drydock writes a plan with ./inv topology plan FILE --json"
        raise InputError(*error.problems, hint=hint) from error
