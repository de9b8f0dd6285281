"""What a topology.yaml says: nodes, groups of nodes, the router, the network, and what is wanted. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from drydock.model.names import OneLine
from drydock.model.record import Count, Identifier, Record, Scalar
from drydock.model.variant import Role

ApiKey = Literal["required", "none"]
Port = Annotated[int, Field(ge=1, le=65535)]
Some = Annotated[int, Field(ge=1, le=1024)]
Tokens = Annotated[int, Field(ge=1, lt=1 << 31)]
Range = tuple[Tokens, Tokens]


class Node(Record):
    """A machine."""

    name: Identifier
    """Its name in this file."""
    address: OneLine
    """Where other nodes reach it: a name or an IP address."""
    host: OneLine
    """Its recorded host: a file that `facts --record host.json` wrote, relative to the topology's folder."""


class Group(Record):
    """Equal servers. Each replica is one server on one or several nodes."""

    name: Identifier
    """Its name in this file."""
    role: Role = "serve"
    """Whether it answers whole requests, or computes prompts or answers only."""
    replicas: Some = 1
    """Number of servers."""
    nodes: Some = 1
    """Nodes of one replica."""
    on: tuple[Identifier, ...] = Field(default=(), alias="among")
    """Nodes that may run it; all if left out. (YAML reads a plain `on` as true, so the file has another name.)"""
    devices: Some | Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    """Devices that a server has on each of its nodes, so that a node can have several servers: how many, or their
    numbers as in `facts`. A node's devices, and the node, if left out."""
    flags: tuple[OneLine, ...] = ()
    """Flags of vLLM or drydock that the user fixes."""
    env: dict[str, Scalar] = Field(default_factory=dict)
    """Environment variables that the user fixes."""


class Router(Record):
    """The program that clients talk to."""

    node: Identifier
    """The node that runs it; it may run a server too."""
    image: OneLine | None = None
    """Its image by digest, registry/name@sha256:…; the one that this checkout builds if left out."""
    port: Port = 30000
    """Where clients connect."""
    policy: Literal["round_robin", "random", "power_of_two", "cache_aware", "consistent_hash"] = "cache_aware"
    """How it chooses a server for a request: its --policy."""
    timeout: Annotated[int, Field(ge=1, le=86400)] = 600
    """Seconds after which a request that has not ended gets an error. OpenAI's clients wait as long by default."""


class Network(Record):
    """The network between nodes."""

    interface: OneLine | None = None
    """Its name on every node; the first that is up on each recorded host if left out."""
    port_base: Port = 20000
    """The first of the ports that the plan allocates."""


class Goals(Record):
    """What clients ask for."""

    input: Range | None = None
    """Tokens of a prompt, from and to."""
    output: Range | None = None
    """Tokens of an answer, from and to."""
    concurrency: Tokens | None = None
    """Requests at a time, of all groups together."""
    optimize: Literal["latency", "throughput"] | None = None
    """Goal: latency (of one answer) or throughput (of all answers)."""


class Topology(Record):
    """topology.yaml: servers of one model on several machines."""

    model: OneLine
    """A hub id, an image (oci://HOST/NAME@sha256:…), or a folder that every node has."""
    target: OneLine | None = None
    """A variant, accelerator or alias of the matrix; or else `image`."""
    image: OneLine | None = None
    """An image by digest: registry/name@sha256:…"""
    api_key: ApiKey | None = None
    """Whether clients must send a key: `required`, or `none` if everyone who reaches a server may use it."""
    nodes: tuple[Node, ...]
    groups: tuple[Group, ...]
    router: Router | None = None
    network: Network = Network()
    goals: Goals = Goals()
