"""The record of images/<row>/upgrade.json: how a drydock made a row of a project, to compare a newer one with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from drydock.model.record import Platform, Record, Sha256

FILE = "upgrade.json"
"""Its name in the folder of a row."""


class Upgraded(Record):
    """The drydock that made a row first, or to which it was upgraded last."""

    version: str
    commit: str
    """Empty if nothing says which it is."""


class HostPlan(Record):
    """What the entrypoint decides on a recorded host: a command, or why there is none."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    """Variables, without those that only name folders of the cache."""
    findings: Mapping[str, str] = {}
    """Id of each check that is WARN or FAIL → which of them."""
    error: str = ""


class RowRecord(Record):
    """images/<row>/upgrade.json."""

    schema_: Literal[1] = Field(alias="schema")
    drydock: Upgraded
    lock: Sha256
    """Checksum of the lock that was used, the project's or drydock's, without the digests of images."""
    inherits: str
    """The row of drydock that it inherits; empty without one."""
    follows: Mapping[Platform, Mapping[str, str]]
    """Distributions and other parts of the lock that drydock had of that row, or of this one → checksum."""
    profile: Mapping[str, Any]
    """The image's profile: path of each key → value. What only people read is left out."""
    plans: Mapping[str, HostPlan]
    """Recorded host of the project → what is decided there."""
