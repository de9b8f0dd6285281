"""What `drydock --version` says. IO."""

from __future__ import annotations

import importlib.metadata
import tomllib

from drydock import INSTALLED
from drydock.core.commit import GitFailedError, read_commit
from drydock.core.console import log
from drydock.core.paths import ROOT

DISTRIBUTION = "drydock-images"
"""Name of the wheel: the public Python index has another project called drydock."""


def read_own_version() -> str:
    """Return the version of drydock."""
    if INSTALLED:
        return importlib.metadata.version(DISTRIBUTION)
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def read_own_commit() -> str:
    """Return the commit of drydock; empty if nothing says which it is, with a warning if git does not answer."""
    try:
        return read_commit(ROOT)
    except GitFailedError as error:
        log(f"warning: the commit of drydock is not known: {error}")
        return ""


def format_version() -> str:
    """Return version, commit, and what this drydock can build without a project."""
    from drydock.config.matrix import read_matrix
    from drydock.config.project_choice import DRYDOCK

    variants = read_matrix(DRYDOCK)
    accelerators = sorted({variant.accelerator for variant in variants})
    rows = f"{len(variants)} images for {len(accelerators)} accelerators: {', '.join(accelerators)}"
    return f"drydock {read_own_version()}\ncommit {read_own_commit() or 'unknown'}\n{rows}\n"
