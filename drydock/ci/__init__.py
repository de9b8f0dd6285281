"""What a CI server runs: workflows rendered from the matrix, and the verbs that they call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from drydock.submodules import submodule

if not TYPE_CHECKING:
    __getattr__ = partial(submodule, __name__)
