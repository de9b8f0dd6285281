"""What `invoke bench` measures: ours beside the plain way, in turns, in one run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from drydock.submodules import submodule

if not TYPE_CHECKING:
    __getattr__ = partial(submodule, __name__)
