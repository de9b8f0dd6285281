"""What is kept between starts, as data: which variable names a cache, and how much must be the same to use it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from drydock.model.record import Because, Identifier, Record, Source


class Cache(Record):
    """One place that vLLM or a library writes to, named by an environment variable."""

    folder: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._/-]*$")]
    """Below the cache volume, or below the entry that the scope names."""
    scope: Literal["shared", "device", "plan"]
    """What must be the same to use it: nothing (found by content), image and device, or model and plan as well."""
    value: str = Field(
        default="{path}", description="Optional: what the variable is set to, where it holds more than {path}: {limit}."
    )
    limit: str = Field(default="", description="Optional: the threshold, in MiB, that {limit} stands for.")
    carry: tuple[Identifier, ...] = Field(
        default=(), description="Optional: folders in it that hold for any plan; a new plan takes them over."
    )
    because: Because
    source: Source


Caches = Annotated[Mapping[str, Cache], Field(description="Environment variables that name caches, with each's place.")]
