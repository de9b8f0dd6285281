"""Which commit a folder holds. Standard library only: hatch_build.py runs this file without its package. IO."""

from __future__ import annotations

import subprocess
from pathlib import Path

FILE = "COMMIT"
"""Records the commit where there is no git: in a source distribution, and in a wheel's data."""


def read_commit(folder: Path) -> str:
    """Return the commit of a folder, with a + if its files differ from it; empty if nothing says which it is."""
    if (folder / FILE).is_file():
        return (folder / FILE).read_text(encoding="ascii").strip()
    if not (folder / ".git").exists():  # a folder within another repository is not of its commit
        return ""
    commit = git_says(folder, "rev-parse", "HEAD")
    return f"{commit}+" if commit and git_says(folder, "status", "--porcelain") else commit


def git_says(folder: Path, *words: str) -> str:
    """Return what git prints about a folder; empty if it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
