"""Imports without what a server that compiles nothing does not use: a quarter of the import time.

- vLLM 0.32 imports Inductor's lowerings to replace a set in them (env_override.py). Here it is replaced when something
  imports them, as vLLM's other patches of Inductor are, and as vLLM's pull request 57310 does it.
- transformers reads the sources of all its models twice (define_import_structure). Here it reads them once.

The same finder changes NIXL's bindings when vLLM imports them (nixl_pause.py).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from .nixl_pause import BINDINGS, execute_with_pause

OVERRIDE, PATCH = "vllm.env_override", "_patch_inductor_fallback_allow_list"
"""The module that patches PyTorch, and its function for the lowerings. vLLM goes on if they cannot be imported."""
LOWERINGS = "torch._inductor.lowering"
STRUCTURE, READ = "transformers.utils.import_utils", "create_import_structure_from_path"

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
