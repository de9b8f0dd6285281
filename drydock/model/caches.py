"""Caches that are kept between starts: the variable that names each, and what must match to reuse it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from drydock.model.names import OneLine, RelativePath, SettingName
from drydock.model.record import Because, Identifier, Record, Source


class Cache(Record):
    """One cache folder of vLLM or a library, set by an environment variable."""

    folder: RelativePath
    """Path below the cache volume, or below the entry that the scope selects."""
    scope: Literal["shared", "device", "plan"]
    """What must match to reuse it: nothing (found by content), image and device, or also model and plan."""
    value: OneLine = Field(
        default="{path}", description="Optional: value of the variable; {path} is the folder, {limit} the threshold."
    )
    limit: OneLine = Field(default="", description="Optional: name of the threshold, in MiB, that replaces {limit}.")
    carry: tuple[Identifier, ...] = Field(
        default=(), description="Optional: subfolders that are valid for any plan; a new plan takes them over."
    )
    because: Because
    source: Source


Caches = Annotated[
    Mapping[SettingName, Cache], Field(description="Caches, by the environment variable that sets each.")
]
