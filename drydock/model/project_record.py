"""The record of drydock.yaml, which makes a folder a project. Pure data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from drydock.model.additions import Additions
from drydock.model.names import OneLine, RelativePath
from drydock.model.record import Identifier, Record


class ProjectDefaults(Record):
    """What drydock uses where neither an option nor a variable of the environment says it."""

    target: OneLine = Field(default="", description="Optional: target of tasks that require one.")
    store: RelativePath | None = None
    """Folder of the project instead of the user's cache folder: sets DRYDOCK_CACHE."""
    model_cache: RelativePath | None = None
    """Folder of the project with Hugging Face's cache of models: sets HF_HUB_CACHE."""


class ProjectFile(Record):
    """drydock.yaml: what a project takes from drydock, and what all its images get."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's format."""
    name: Identifier
    """Name of the project, for messages, and before its rows where other projects inherit them."""
    from_: tuple[OneLine, ...] = Field(alias="from", default=(), max_length=32)
    """Projects of others that lie between drydock's files and this project's, the lowest first: a folder,
    oci://HOST/NAME@sha256:…, or git+https://HOST/PATH@COMMIT."""
    rows: Literal["all"] | tuple[Identifier, ...] = "all"
    """Rows of drydock's own that the project has next to its own: all, or by id."""
    registry: OneLine = Field(default="", description="Optional: host and path that `publish` pushes to by default.")
    foundations: OneLine = Field(
        default="", description="Optional: host and repository that `build` pulls foundations from."
    )
    recipes: OneLine = ""
    """Where `./inv recipes` takes published recipes from: https://HOST/PATH, or a folder of the project with models/.
    `none`: the project's images have none."""
    mirrors: RelativePath | None = None
    """A mirrors.yaml of the project, used where DRYDOCK_MIRRORS names none."""
    defaults: ProjectDefaults = ProjectDefaults()
    """What the project's users need not type."""
    additions: Additions = Additions()
    """What every image of the project gets."""
