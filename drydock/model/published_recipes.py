"""The record of templates/recipes.lock.json: which published recipes the images have. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from drydock.model.names import OneLine
from drydock.model.record import Record, Sha256


class RecipesLock(Record):
    """Which recipes are in templates/recipes.json, and where they were read."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's format."""
    repository: OneLine
    """Repository or folder of the recipes."""
    commit: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40})?$")] = ""
    """Commit of the repository; empty for a folder."""
    date: Annotated[str, StringConstraints(pattern=r"^(\d{4}-\d\d-\d\d)?$")]
    """Day of the commit; of a folder, the newest day that a recipe names."""
    licence: OneLine = ""
    """SPDX expression; empty if it is not known."""
    facts_sha256: Sha256
    """SHA-256 of templates/recipes.json."""
    verified: bool
    """Whether the repository itself had the commit."""
    reason: OneLine = ""
    """Why not, if it is not verified."""
    skipped: Mapping[str, OneLine] = MappingProxyType({})
    """File that could not be read as a recipe → why."""
