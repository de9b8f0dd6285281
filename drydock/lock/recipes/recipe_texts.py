"""The texts of published recipes, wherever they were read. Pure: rendering an image imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

UPSTREAM = "https://github.com/vllm-project/recipes"
LICENCE = "Apache-2.0"
"""Of vllm-project/recipes: its file LICENSE."""


class Recipes(NamedTuple):
    """The text of each recipe, and where it was read."""

    repository: str
    commit: str
    """Empty for a folder."""
    date: str
    """Day of the commit; empty for a folder."""
    texts: Mapping[str, bytes]
    """Path in the repository → content."""
    unverified: str = ""
    """Why it is not known that the repository has this; empty if it is."""
