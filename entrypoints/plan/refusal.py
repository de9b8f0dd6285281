"""Something that this vLLM does not take. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.core.errors import REFUSED


class Refusal(NamedTuple):
    """Something that this vLLM does not take."""

    name: str
    """What `--vllm-accepts` names: an architecture, a method, a package, or the flag of a value."""
    problem: str
    expected: str
    code: int = REFUSED
    certain: bool = True
    """False if another library may take it: then it is said, and nothing is refused."""
    is_misspelt: bool = False
    """Whether the value is probably wrong, so that no other image would take it."""
    is_of_release: bool = False
    """Whether the list of vLLM's release also holds for its forks and plugins, which do not change it."""
    instead: str = ""
    """What to do, if no other row takes it."""
    kind: str = ""
    """The list of which `name` is no entry, where rows differ in it."""
    words: str = ""
    """vLLM's own, if it was asked; then `expected` is the example with which it was asked."""
    taken_by: tuple[str, ...] = ()
    """The versions of vLLM that take the example, where some do."""
