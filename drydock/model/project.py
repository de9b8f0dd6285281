"""The record of drydock.yaml, which makes a folder a project. Pure data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from drydock.model.additions import Additions
from drydock.model.names import OneLine, RelativePath
from drydock.model.record import Identifier, Record


class ProjectFile(Record):
    """drydock.yaml: what a project takes from drydock, and what all its images get."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's format."""
    name: Identifier
    """Name of the project, for messages."""
    rows: Literal["all"] | tuple[Identifier, ...] = "all"
    """Rows of drydock's own that the project has next to its own: all, or by id."""
    registry: OneLine = Field(default="", description="Optional: host and path that `publish` pushes to by default.")
    mirrors: RelativePath | None = None
    """A mirrors.yaml of the project, used where DRYDOCK_MIRRORS names none."""
    additions: Additions = Additions()
    """What every image of the project gets."""
