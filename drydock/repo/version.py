"""What `drydock --version` says. IO."""

from __future__ import annotations

import importlib.metadata
import tomllib

from drydock import INSTALLED
from drydock.config.matrix import read_matrix
from drydock.config.project import DRYDOCK
from drydock.core.commit import read_commit
from drydock.core.paths import ROOT


def number() -> str:
    """Return the version of drydock."""
    if INSTALLED:
        return importlib.metadata.version("drydock")
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def text() -> str:
    """Return version, commit, and what this drydock can build without a project."""
    variants = read_matrix(DRYDOCK)
    accelerators = sorted({variant.accelerator for variant in variants})
    commit = read_commit(ROOT) or "unknown"
    rows = f"{len(variants)} images for {len(accelerators)} accelerators: {', '.join(accelerators)}"
    return f"drydock {number()}\ncommit {commit}\n{rows}\n"
