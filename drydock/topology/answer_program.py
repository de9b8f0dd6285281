"""The known answer as a program for images whose `health` has no --topology yet, those of the last release. IO.

It is the image side's own code, as text: the modules that the verb needs, and a loader. Delete it with the next
release.
"""

from __future__ import annotations

import importlib
from pathlib import Path

PACKAGES = ("entrypoints", "entrypoints.core", "entrypoints.request", "entrypoints.serve")
MODULES = (
    "entrypoints.core.errors",
    "entrypoints.core.metrics",
    "entrypoints.core.text",
    "entrypoints.request.flags",
    "entrypoints.serve.client",
    "entrypoints.serve.topology_answer",
)
"""What the verb imports, each after those that it imports itself."""
_LOADER = """\
import os, sys, types

def load(name, text):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    exec(compile(text, name, "exec"), module.__dict__)

for name in {packages!r}:
    load(name, "")
{loads}
sys.exit(sys.modules[{main!r}].main(sys.argv[1:], os.environ))
"""


def make_answer_program() -> str:
    """Return a program for Python 3.10 without packages; its arguments are those of `health`."""
    loads = "\n".join(f"load({name!r}, {_read_module(name)!r})" for name in MODULES)
    return _LOADER.format(packages=PACKAGES, loads=loads, main=MODULES[-1])


def _read_module(name: str) -> str:
    return Path(importlib.import_module(name).__file__ or "").read_text(encoding="utf-8")
