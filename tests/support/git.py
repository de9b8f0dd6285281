"""Repositories of git that tests make."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, as a committer of its own; return what it prints."""
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    result = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return result.stdout.strip()
