"""Environment variables that mean something on an accelerator, as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from drydock.model.names import OneLine, VariableName
from drydock.model.record import Record

Names = Annotated[tuple[VariableName, ...], Field(description="Variable names, or how such names begin: VLLM_.")]


class Variables(Record):
    """What environment variables mean; an accelerator adds its own to those of templates/host.yaml."""

    shown: Names = Field(default=(), description="Optional: a plan lists these with a reason if the user sets them.")
    compiling: Names = Field(
        default=(), description="Optional: these can enter a compiler's own cache key; an entry records their digests."
    )
    not_compiling: Names = Field(
        default=(), description="Optional: these change no compiled code and stay out of the compile cache's key."
    )
    devices: Names = Field(default=(), description="Optional: these select devices and can hide all of them.")
    documented: Names = Field(
        default=(),
        exclude=True,  # images do not need it: `run --env` writes the values of these, and tells a misspelling by them
        description="Optional: whole names that their programs document; `run --env` prints values of these only.",
    )
    files: Mapping[VariableName, OneLine] = Field(
        default={}, description="Optional: variables that name a file which must exist before vLLM starts, with a hint."
    )

    def __or__(self, variables: Variables) -> Variables:
        """Return both together."""
        return Variables(
            shown=(*self.shown, *variables.shown),
            compiling=(*self.compiling, *variables.compiling),
            not_compiling=(*self.not_compiling, *variables.not_compiling),
            devices=(*self.devices, *variables.devices),
            documented=(*self.documented, *variables.documented),
            files={**self.files, **variables.files},
        )
