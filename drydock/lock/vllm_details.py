"""What `compare` knows of a vLLM, and its lists do not: defaults, spellings, keys of JSON, how variables are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drydock.model.record import Record

ONE, MANY, MAYBE, NOTHING = "one", "many", "maybe", "nothing"
"""How many values a flag takes: 1; 1 or more; 0 or 1; 0."""
SUFFIX, AUTO = "suffix", "auto"
"""Forms of whole numbers, in addition to digits: 4k; 4k and auto."""
ANY = "any"
"""The kind of a type that says nothing of its values."""


class FlagDetails(Record):
    """One flag of the server."""

    names: tuple[str, ...]
    """Its spellings, as the parser has them."""
    default: str
    """Python's text of it; None mostly means that vLLM decides."""
    count: str = ONE
    words: tuple[str, ...] = ()
    """Values that vLLM's annotation names."""
    only_words: bool = False
    """Whether the parser takes no other values; else they are a plugin's, or the user's."""
    item: str = ""
    """What each value of a list is: int or float; empty for a text."""
    is_custom: bool = False
    """Whether code of vLLM's own parses the values: what it takes is not known."""
    record: str = ""
    """Of a JSON flag: the class whose fields are its keys."""
    annotation: str = ""
    """Of a JSON flag without a class: its type."""
    deprecated: str = ""
    """What vLLM says of its end; empty if it says nothing."""
    number: str = ""
    """Of a whole number: `suffix` if 4k is one too, `auto` if the word auto is one as well."""
    takes_none: bool = False
    """Whether the word None is a value."""


class KeyDetails(Record):
    """One key of a JSON flag."""

    default: str
    takes: Any = ""
    """As a flag's, in the lists."""
    kinds: tuple[str, ...] = ()
    """Kinds of JSON values that its type names; `any` if the type says nothing of them."""
    words: tuple[str, ...] = ()
    record: str = ""


class VariableDetails(Record):
    """One environment variable."""

    default: str
    """Python's text of it; empty if it is computed in another way."""
    reader: str
    """Python's text of how it is read, with the default left out."""
    choices: tuple[str, ...] = ()


class VllmDetails(Record):
    """What `compare` knows of a version, in addition to its lists."""

    flags: tuple[FlagDetails, ...] = ()
    records: Mapping[str, Mapping[str, KeyDetails]] = {}
    """Class of a JSON flag → its keys."""
    variables: Mapping[str, VariableDetails] = {}
    closed: bool = False
    """Whether a JSON flag's class refuses keys that it does not have."""
