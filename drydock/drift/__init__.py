"""What locking anew would change, asked without changing anything: packages, base tags, git refs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from drydock.submodules import submodule

if not TYPE_CHECKING:
    __getattr__ = partial(submodule, __name__)
