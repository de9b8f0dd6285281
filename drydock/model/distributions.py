"""What a stack says of Python distributions: which it forces, goes without, spreads over layers and trims. Pure.

Names of distributions are normalised (lower case, hyphens).
"""

from __future__ import annotations

from drydock.model.record import Identifier, Record


class Exclusion(Record):
    """A distribution the resolver wants and the image does without."""

    name: str
    """Of the distribution, normalised."""
    reason: str
    """Why, in one sentence."""


class Override(Record):
    """A requirement forced upon the resolver."""

    requirement: str
    """As pip writes it, such as numpy==2.3.5."""
    reason: str
    """Why, in one sentence."""


class Layer(Record):
    """One image layer of Python distributions; the layer without any takes all the others. Order is build order."""

    name: Identifier
    """Of the layer."""
    distributions: tuple[str, ...] = ()
    """Normalised names; in exactly one layer of a stack there are none."""


class Trim(Record):
    """What the image does without of a distribution; patterns match paths as its RECORD has them, `*` slashes too."""

    distribution: str
    """Normalised name."""
    drop: tuple[str, ...] = ()
    """Globs of files that are removed."""
    strip: tuple[str, ...] = ()
    """Globs of ELF files that lose symbols and debugging information; what is loaded stays byte for byte."""
    reason: str
    """Why nothing misses it, in one sentence."""
