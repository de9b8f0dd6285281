"""A repository with the files of this checkout, to release from."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from drydock.ci import workflow
from drydock.config.matrix import read_matrix
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.development import surface
from drydock.lock import kind_runs
from drydock.pages import docs
from tests.support.git import git

CHANGELOG = """# Changelog

## Unreleased

### Before you upgrade

- Stop it.

### Removed

- `--gone`.

## 0.1.0 - 2026-11-22

The first.
"""


def copied(folder: Path, number: str = "0.1.0") -> Path:
    """Make the repository at a version: one commit on main, after release 0.1.0, with changes that ask for 0.2.0."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    version = folder / "pyproject.toml"
    version.write_text(re.sub('^version = "[^"]*"$', f'version = "{number}"', version.read_text(), flags=re.MULTILINE))
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    (folder / kind_runs.FILE).write_text('{"kinds": {}}')  # its commits are not of this repository
    for record in folder.glob("images/*/record.json"):
        record.unlink()  # it may be of other inputs, which a release refuses
    workflow.write(Project(folder), read_matrix(Project(folder)))  # its weekly jobs are those kinds
    docs.write(Project(folder), read_matrix(Project(folder)))
    present = surface.collect_surface(read_matrix(Project(folder)))
    (folder / surface.FILE).write_text(surface.format_surface("0.1.0", present))
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return folder
