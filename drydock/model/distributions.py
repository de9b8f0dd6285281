"""What a stack says about Python distributions: overrides, exclusions, layers and trimming. Pure.

Names of distributions are normalised (lower case, hyphens).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field

from drydock.model.names import Distribution, OneLine, RecordGlob, Requirement
from drydock.model.record import Identifier, Record

Reason = Annotated[
    OneLine,
    Field(
        description="Why, in one sentence.",
        validation_alias=AliasChoices("because", "reason"),  # its name in 0.1.0, which locks were made with
        serialization_alias="reason",
    ),
]


class Exclusion(Record):
    """A distribution that the resolver would install and the image leaves out."""

    name: Distribution
    """Normalised name of the distribution."""
    because: Reason


class Override(Record):
    """A requirement that replaces what distributions ask for."""

    requirement: Requirement
    """In pip's syntax, such as numpy==2.3.5."""
    because: Reason


class Layer(Record):
    """One image layer of Python distributions, in build order. The layer that lists none takes all the others."""

    name: Identifier
    """Name of the layer."""
    distributions: tuple[Distribution, ...] = ()
    """Normalised names; exactly one layer of a stack lists none."""


class Trim(Record):
    """Files of a distribution that the image omits. Patterns match paths in its RECORD; `*` matches slashes too."""

    distribution: Distribution
    """Normalised name."""
    drop: tuple[RecordGlob, ...] = ()
    """Globs of files to remove."""
    strip: tuple[RecordGlob, ...] = ()
    """Globs of ELF files to strip of symbols and debugging information; what is loaded stays byte for byte the same."""
    because: Reason
