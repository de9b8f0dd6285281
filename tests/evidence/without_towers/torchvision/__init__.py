"""Stands for torchvision, which the CPU image lacks: any name exists, and does nothing.

vLLM and transformers import it to read images, which the classes that a rehearsal builds never do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.28.0"
PREFIX = f"{__name__}."


class AnyClass(type):
    """A class with any attribute."""

    def __getattr__(cls, name: str) -> Any:
        return make_class(name)


def make_class(name: str) -> Any:
    """Return a class that takes any argument. Raises AttributeError for what Python itself looks for."""
    if name.startswith("__"):
        raise AttributeError(name)
    return AnyClass(name, (), {"__init__": lambda *_, **__: None})


class AnyModule(ModuleType):
    """A module with any attribute."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        return make_class(name)


class Finder(MetaPathFinder, Loader):
    """Finds any module below this one."""

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(PREFIX) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AnyModule(spec.name)

    def exec_module(self, _module: ModuleType) -> None:
        """Leave the module as it is."""


sys.meta_path.insert(0, Finder())


def __getattr__(name: str) -> Any:
    if name in ("transforms", "ops", "io", "models"):
        return import_module(f"{PREFIX}{name}")
    return make_class(name)
