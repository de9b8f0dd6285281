"""Which commit a folder holds."""

from __future__ import annotations

import subprocess
from pathlib import Path

from drydock.core.commit import FILE, read_commit


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_commit_is_read_from_git_and_a_plus_says_that_files_differ(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")

    assert read_commit(tmp_path) == commit
    (tmp_path / "new").touch()
    assert read_commit(tmp_path) == f"{commit}+"
    assert read_commit(tmp_path / "folder") == ""


def test_without_git_a_file_says_it(tmp_path: Path) -> None:
    assert read_commit(tmp_path) == ""
    (tmp_path / FILE).write_text("0123+\n")
    assert read_commit(tmp_path) == "0123+"
