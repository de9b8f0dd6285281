"""The records that say what a container of an accelerator is started with. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, StringConstraints

from drydock.model.record import Because, Record, Setting, Source


class Word(Record):
    """One word that a container is started with, and why it needs it."""

    value: str
    """Such as SYS_NICE, seccomp=unconfined, video, memlock=-1:-1."""
    because: Because
    source: Source
    check: str = Field(
        default="", description="Optional: id of the check that knows when it is missed; else it always is when absent."
    )


class Ulimit(Word):
    """A resource limit."""

    value: Annotated[str, StringConstraints(pattern=r"^[a-z]+=-?\d+(:-?\d+)?$")]
    """As docker writes it: memlock=-1:-1."""


class Size(Word):
    """A size."""

    value: Annotated[str, StringConstraints(pattern=r"^\d+[kmgt]?b?$")]
    """As docker writes it: 16g."""


class Minutes(Word):
    """A time."""

    value: Annotated[str, StringConstraints(pattern=r"^\d+m$")]
    """As a Dockerfile's HEALTHCHECK writes it: 60m."""


class DeviceNode(Record):
    """Device files that a container needs."""

    path: str
    """A path, or a pattern such as /dev/davinci[0-9]* where each card has one."""
    each: bool = False
    """Whether each card has its own: then only the chosen ones are given."""
    optional: bool = False
    """Whether some machines rightly lack it: then it is given where it is, such as one kind of card files of two."""
    because: Because
    source: Source


class MountPoint(Record):
    """A file or folder of the host that a container needs, such as the driver's libraries."""

    path: str
    """On the host, and in the container."""
    optional: bool = False
    """Whether some hosts rightly lack it."""
    because: Because
    source: Source


class Privileged(Record):
    """Why nothing less than --privileged does, where that is so."""

    because: Because
    instead: str
    """What was considered, and why it does not do."""
    source: Source


class Kubernetes(Record):
    """What a pod asks for instead of device files."""

    resource: str
    """Of the vendor's device plugin, such as habana.ai/gaudi."""
    source: Source


class Run(Record):
    """What a container of this accelerator needs, as docker, compose and Kubernetes each write it; least privilege."""

    devices: tuple[DeviceNode, ...] = ()
    """Device files."""
    usual: int = 0
    """Cards that a machine usually has: what --print assumes where there is none."""
    visible: Word | None = None
    """The variable that chooses cards and, after an equals sign, what means all: HABANA_VISIBLE_DEVICES=all."""
    runtime: Word | None = None
    """Of the container engine, such as habana."""
    gpus: Word | None = None
    """What docker's --gpus is given."""
    capabilities: tuple[Word, ...] = ()
    """Without CAP_. Docker gives them to root alone (moby/moby#8460); for others only its system call filter opens."""
    security: tuple[Word, ...] = ()
    """What --security-opt is given."""
    groups: tuple[Word, ...] = ()
    """Supplementary groups, by name on the host; their numbers are looked up there."""
    mounts: tuple[MountPoint, ...] = ()
    """Read-only files and folders of the host."""
    ulimits: tuple[Ulimit, ...] = ()
    """Resource limits."""
    shm: Size | None = None
    """Size of /dev/shm."""
    ipc: Word | None = None
    """host, where the processes of several containers share memory."""
    network: Word | None = None
    """host, where the interconnect needs the host's interfaces."""
    user: Word | None = None
    """uid:gid, where the device files are not for everybody."""
    env: Mapping[str, Setting] = {}
    """Environment variables that must be there before the entrypoint starts."""
    privileged: Privileged | None = None
    """Only where the vendor leaves no other way."""
    start: Minutes | None = None
    """How long a first start may take before its health counts, where ten minutes are too few."""
    kubernetes: Kubernetes | None = None
    """The device plugin's resource."""
