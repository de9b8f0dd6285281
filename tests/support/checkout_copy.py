"""A copy of this checkout, for tests that do what a page for contributors says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from drydock.core.paths import ROOT


def copy_checkout(folder: Path) -> Path:
    """Copy every file that git knows or would add, with a link to this checkout's .venv; return the copy."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    return folder


def read_commands(page: str) -> list[list[str]]:
    """Return the words of each command in a page's first block of shell commands, without comments."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert block, f"{page}: expected a block of commands (```sh)"
    return [line.partition("#")[0].split() for line in block[1].splitlines()]


def run_in_copy(copy: Path, *command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a copy, and check how it ends."""
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    output = f"{result.stdout[-2000:]}{result.stderr[-2000:]}"
    assert result.returncode == code, f"{' '.join(command)}: exit code {result.returncode}\n{output}"
    return result
