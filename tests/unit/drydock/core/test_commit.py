"""Which commit a folder holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from drydock.core.commit import FILE, GitFailedError, read_commit


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    result = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return result.stdout.strip()


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


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "a").touch()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def fake_git(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a git first on PATH that runs a script, and the real one for all that it does not end itself."""
    real = shutil.which("git")
    (folder / "bin").mkdir()
    (folder / "bin" / "git").write_text(f'#!/bin/sh\n{script}\nexec {real} "$@"\n')
    (folder / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def test_a_repository_of_another_user_is_not_without_a_commit(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own tests use it

    with pytest.raises(GitFailedError, match="dubious ownership") as error:
        read_commit(repository)

    assert error.value.hint == f"if you trust its owner: git config --global --add safe.directory {repository}"


def test_a_repository_without_git_is_not_without_a_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))

    with pytest.raises(GitFailedError, match="git cannot be started") as error:
        read_commit(repository)

    assert "install git" in error.value.hint


def test_a_status_that_fails_is_not_a_clean_one(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = '[ "$3" = status ] && { echo "fatal: index file corrupt" >&2; exit 128; }'
    fake_git(tmp_path_factory.mktemp("fake"), monkeypatch, script)

    with pytest.raises(GitFailedError, match="git status: index file corrupt"):
        read_commit(repository)


def test_a_damaged_repository_is_not_without_a_commit(repository: Path) -> None:
    (repository / ".git" / "HEAD").write_text("")

    with pytest.raises(GitFailedError, match="not a git repository"):
        read_commit(repository)


def test_a_repository_without_commits_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")

    assert read_commit(tmp_path) == ""


def test_the_repository_of_a_hook_is_not_the_folders(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_repository = tmp_path_factory.mktemp("other")
    git(other_repository, "init", "--quiet")
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other_repository / ".git"))

    assert read_commit(repository) == commit
