"""Modules of a package as its attributes, imported when they are first named.

invoke reads all of tasks.py whatever the verb; docker's SDK, requests and their like are for those verbs that use them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def submodule(package: str, name: str) -> ModuleType:
    """Return a package's module, for its `__getattr__`. Raises AttributeError where it has none."""
    if name.startswith("_") or not find_spec(f"{package}.{name}"):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return import_module(f"{package}.{name}")
