"""Records of the options that a container of an accelerator is started with. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, StringConstraints

from drydock.model import names
from drydock.model.names import AbsoluteGlob, AbsolutePath, OneLine, VariableName, make_text_constraint
from drydock.model.record import Because, Record, Setting, Source

MODELS = "/models"
"""Folder of models in a container."""
PciId = Annotated[
    str,
    make_text_constraint(r"^[0-9a-f]{4}:[0-9a-f]{4}$", "vendor and device of PCI in hexadecimal, such as 1da3:1020"),
]


class Word(Record):
    """One option of a container, and why it is needed."""

    value: names.Word
    """Value of the option, such as SYS_NICE, seccomp=unconfined, video or memlock=-1:-1."""
    because: Because
    source: Source
    check: OneLine = Field(
        default="", description="Optional: id of the check that reports its absence; without one, every absence counts."
    )


class Ulimit(Word):
    """A resource limit."""

    value: Annotated[
        str,
        make_text_constraint(r"^[a-z]+=-?[0-9]+(:-?[0-9]+)?$", "NAME=SOFT or NAME=SOFT:HARD, such as memlock=-1:-1"),
    ]
    """In docker's syntax: memlock=-1:-1."""


class Size(Word):
    """A size."""

    value: Annotated[str, make_text_constraint(r"^[0-9]+[kmgt]?b?$", "a size such as 16g")]
    """In docker's syntax: 16g."""


class Runtime(Word):
    """A runtime of the container engine."""

    install: OneLine = Field(
        default="",
        description="Optional: how to install and register it, in words that follow `hint:`.",
        exclude_if=lambda words: not words,  # the key must not change profiles of accelerators without any
    )


class Minutes(Word):
    """A duration."""

    value: Annotated[str, make_text_constraint(r"^[0-9]+m$", "minutes, such as 30m")]
    """In the syntax of a Dockerfile's HEALTHCHECK: 60m."""


class DeviceNode(Record):
    """Device files that a container needs."""

    path: AbsoluteGlob
    """A path, or a pattern such as /dev/davinci[0-9]* where each card has one."""
    each: bool = False
    """Whether each card has its own; if so, only those of the chosen cards are passed."""
    optional: bool = False
    """Whether some machines do not have it, such as the file of another kind of card; it is passed if it exists."""
    because: Because
    source: Source


class MountPoint(Record):
    """A file or folder of the host that a container needs, such as the driver's libraries."""

    path: AbsolutePath
    """Path on the host and in the container."""
    optional: bool = False
    """Whether some hosts do not have it."""
    because: Because
    source: Source


class Privileged(Record):
    """Why the container needs --privileged."""

    because: Because
    instead: OneLine
    """Which alternatives were considered, and why they are not enough."""
    source: Source


Shape = Annotated[str, StringConstraints(pattern=r"^([0-9]+ hosts of )?[0-9]+$")]


class NodeKind(Record):
    """Nodes of a managed Kubernetes that only pods with these labels in their nodeSelector get."""

    architecture: OneLine
    """Of their devices, as `facts` prints it."""
    labels: Mapping[names.Word, names.Word]
    """Label → value, of all these nodes."""
    shape: names.Word
    """Label that tells how many devices are connected, and how."""
    shapes: Mapping[Shape, names.Word]
    """Devices of a node, such as 4, or of several, such as 2 hosts of 4 → value of `shape`."""


class Kubernetes(Record):
    """What a pod requests instead of device files."""

    resource: names.Word
    """Resource name of the vendor's device plugin, such as habana.ai/gaudi."""
    source: Source
    nodes: tuple[NodeKind, ...] = Field(
        default=(),
        exclude=True,  # images do not need it
        description="Optional: kinds of nodes whose labels a pod must select, by the architecture of their devices.",
    )


class More(Record):
    """Options that a container needs in addition if it has many cards, or if its server runs on several hosts."""

    where: OneLine
    """Which containers need them, in words that follow "only": with more than four cards."""
    cards: int = 0
    """Smallest number of cards of such a container; 0 if their number does not matter."""
    hosts: int = 1
    """Smallest number of hosts of such a server (--nnodes)."""
    pci: tuple[PciId, ...] = ()
    """Cards that need them, by vendor and device in /sys/bus/pci: 1da3:1021. Without any, all."""
    names: tuple[OneLine, ...] = ()
    """Names that the vendor's tool gives to the same cards: HL-288E. Where `pci` has some, so must this."""
    threshold: OneLine = ""
    """Threshold of the stack that must be true; otherwise the image cannot use them."""
    devices: tuple[DeviceNode, ...] = ()
    """Device files to pass."""
    capabilities: tuple[Word, ...] = ()
    """Without CAP_."""
    network: Word | None = None
    """`host` if the host's own network interfaces are used."""


class Run(Record):
    """What a container of this accelerator needs, with least privilege: for docker, Compose and Kubernetes."""

    devices: tuple[DeviceNode, ...] = ()
    """Device files to pass."""
    usual: int = 0
    """Usual number of cards of a machine; --print assumes it on a machine without any."""
    visible: Word | None = None
    """Variable that selects cards and, after an equals sign, the value for all of them: HABANA_VISIBLE_DEVICES=all."""
    runtime: Runtime | None = None
    """Runtime of the container engine, such as habana."""
    gpus: Word | None = None
    """Value of docker's --gpus."""
    capabilities: tuple[Word, ...] = ()
    """Without CAP_. Docker grants them to root only (moby/moby#8460); for others they relax the seccomp filter."""
    security: tuple[Word, ...] = ()
    """Values of --security-opt."""
    groups: tuple[Word, ...] = ()
    """Supplementary groups, by name; their ids are looked up on the host."""
    mounts: tuple[MountPoint, ...] = ()
    """Read-only files and folders of the host."""
    ulimits: tuple[Ulimit, ...] = ()
    """Resource limits."""
    shm: Size | None = None
    """Size of /dev/shm."""
    ipc: Word | None = None
    """`host` if the processes of several containers share memory."""
    network: Word | None = None
    """`host` if the interconnect needs the host's network interfaces."""
    user: Word | None = None
    """uid:gid, if only some users may open the device files."""
    env: Mapping[VariableName, Setting] = {}
    """Environment variables that must be set before the entrypoint starts."""
    privileged: Privileged | None = None
    """Only if the vendor offers no alternative."""
    start: Minutes | None = None
    """Time that a first start may take before failed health checks count, if ten minutes are too few."""
    kubernetes: Kubernetes | None = None
    """Resource of the device plugin."""
    more: tuple[More, ...] = Field(
        default=(),
        description="Optional: what only some containers need.",
        exclude_if=lambda more: not more,  # the key must not change profiles of accelerators without any
    )
