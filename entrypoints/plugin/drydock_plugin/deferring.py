"""Imports without what a server that compiles nothing does not use: a quarter of the import time.

- vLLM 0.32 imports Inductor's lowerings to replace a set in them (env_override.py). Here it is replaced when something
  imports them, as vLLM's other patches of Inductor are, and as vLLM's pull request 57310 does it.
- transformers reads the sources of all its models twice (define_import_structure). Here it reads them once.

The same finder changes NIXL's bindings when vLLM imports them (nixl_pause.py).

Another finder lets vLLM import packages that the image lacks, for a server of text: vLLM imports the class of a model,
and with it what transforms pictures, before it reads --language-model-only. What it then finds raises when it is
called. Libraries that ask whether a package is there still hear that it is not: they asked before.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

from .nixl_pause import BINDINGS, execute_with_pause

OVERRIDE, PATCH = "vllm.env_override", "_patch_inductor_fallback_allow_list"
"""The module that patches PyTorch, and its function for the lowerings. vLLM goes on if they cannot be imported."""
LOWERINGS = "torch._inductor.lowering"
STRUCTURE, READ = "transformers.utils.import_utils", "create_import_structure_from_path"

ABSENT = "DRYDOCK_ABSENT_PACKAGES"
"""Environment variable with the packages that the image lacks, with commas between."""

Execute = Callable[[ModuleType], None]


class Finder:
    """Finds modules as Python does, and does more than execute some of them."""

    def __init__(self) -> None:
        self._executes: dict[str, Callable[[Execute, ModuleType], None]] = {
            OVERRIDE: self._without_lowerings,
            STRUCTURE: _reading_once,
            **dict.fromkeys(BINDINGS, execute_with_pause),
        }
        self._refuses = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the specification of one of our modules, once. Raises ImportError where the lowerings can wait."""
        if name == LOWERINGS and self._refuses:
            self._executes[LOWERINGS] = _execute_patched
            raise ImportError("Inductor is imported when something uses it", name=name)
        execute = self._executes.pop(name, None)
        spec = PathFinder.find_spec(name, path, target) if execute else None
        if execute and spec and spec.loader:
            spec.loader.exec_module = functools.partial(execute, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _without_lowerings(self, execute: Execute, module: ModuleType) -> None:
        """Execute vLLM's module without the lowerings; as it is if it uses them in a way that is not known here."""
        self._refuses = True
        try:
            execute(module)
            if hasattr(module, PATCH):
                return
        except ImportError:
            if LOWERINGS not in self._executes:
                raise
        finally:
            self._refuses = False
        if self._executes.pop(LOWERINGS, None):
            execute(module)


def _execute_patched(execute: Execute, module: ModuleType) -> None:
    execute(module)
    getattr(sys.modules[OVERRIDE], PATCH)()


def _reading_once(execute: Execute, module: ModuleType) -> None:
    execute(module)
    if hasattr(module, READ):
        setattr(module, READ, functools.cache(getattr(module, READ)))


# --- packages that the image lacks ----------------------------------------------------------------------------------


def stand_in() -> None:
    """Let the packages of ABSENT that are not there be imported from now on, in this process."""
    packages = [name for name in os.environ.get(ABSENT, "").split(",") if name and not find_spec(name)]
    if packages:
        sys.meta_path.append(AbsentFinder(packages))


class AbsentFinder:
    """Finds every module of some packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a specification of a module of one of the packages."""
        is_absent = name.partition(".")[0] in self._packages
        return ModuleSpec(name, self, is_package=True) if is_absent else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that has everything it is asked for."""
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


class _Absent(type):
    """The class of what stands for a class or function, so that `A | None` and `A.B` are possible."""

    def __getattr__(cls, name: str) -> _Absent:
        return _make_absent(f"{cls.__module__}.{cls.__qualname__}", name)

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        raise ImportError(f"{cls.__module__}.{cls.__qualname__}: the image lacks the package, and serves text only")


class _AbsentModule(ModuleType):
    """A module of an absent package."""

    def __getattr__(self, name: str) -> _Absent:
        return _make_absent(self.__name__, name)


def _make_absent(module: str, name: str) -> _Absent:
    """Return what stands for a name of a module. Raises AttributeError for Python's own names."""
    if name.startswith("__"):
        raise AttributeError(name)
    made: _Absent = type.__call__(_Absent, name, (), {"__module__": module})
    return made
