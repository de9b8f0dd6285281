"""Which commit a folder holds. Standard library only: hatch_build.py runs this file without its package. IO.

No commit means that there is no repository. A repository whose git refuses to answer, or that has no git to ask, is an
error: its image would be published as made from no commit, or from an unchanged one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = "COMMIT"
"""Records the commit where there is no git: in a source distribution, and in a wheel's data."""
REPOSITORY_VARIABLES = frozenset(
    f"GIT_{name}"
    for name in ("DIR", "WORK_TREE", "INDEX_FILE", "COMMON_DIR", "OBJECT_DIRECTORY", "ALTERNATE_OBJECT_DIRECTORIES",
                 "NAMESPACE", "PREFIX", "SHALLOW_FILE", "GRAFT_FILE", "CEILING_DIRECTORIES")
)  # fmt: skip
"""Variables that a git hook sets; with them, git would work in the hook's repository."""
_REFUSED_OWNER = "dubious ownership"
"""What git says of a repository of another user (git-config(1), safe.directory)."""


class GitFailedError(Exception):
    """A repository is there, and git does not say what it holds; `hint` says what to do."""

    def __init__(self, problem: str, hint: str) -> None:
        self.hint = hint
        super().__init__(problem)

    def __str__(self) -> str:
        return f"{self.args[0]}\n\nhint: {self.hint}"


def read_commit(folder: Path, ignored: Sequence[str] = ()) -> str:
    """Return the commit of a folder, with a + if its files differ from it; empty if nothing says which it is.

    `ignored` are pathspecs of files that may differ. Raises GitFailedError.
    """
    if (folder / FILE).is_file():
        return (folder / FILE).read_text(encoding="ascii").strip()
    if not os.path.lexists(folder / ".git"):  # a folder within another repository is not of its commit
        return ""
    commit = read_head(folder)
    is_changed = commit and run_git(folder, "status", "--porcelain", "--", *select_all_but(ignored))
    return f"{commit}+" if is_changed else commit


def select_all_but(ignored: Sequence[str]) -> list[str]:
    """Return pathspecs of git for a whole repository without some files, which are named from the current folder."""
    return [":/", *(f":(exclude,glob){name}" for name in ignored)]


def read_head(folder: Path) -> str:
    """Return the commit of the repository that a folder is in; empty if it has none yet. Raises GitFailedError."""
    # --quiet: exit 1 and no output for a branch without commits; any other failure has a message.
    return run_git(folder, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).strip()


def is_in_repository(folder: Path) -> bool:
    """Tell whether a folder is in a git repository, without git: one that refuses to answer is a repository too."""
    return any(os.path.lexists(parent / ".git") for parent in (folder.absolute(), *folder.absolute().parents))


def run_git(folder: Path, *words: str, may_fail: bool = False) -> str:
    """Return what git prints about a folder, with bytes that are no UTF-8 as surrogates.

    With `may_fail`, a failure without a message, which is an answer of git, returns nothing. Raises GitFailedError.
    """
    command = ["git", "-C", str(folder), *words]
    try:
        result = subprocess.run(command, capture_output=True, check=False, env=_make_git_environment(os.environ))
    except OSError as error:
        problem = f"{folder}: is a git repository, and git cannot be started: {error.strerror}"
        raise GitFailedError(problem, "install git: apt-get install git") from error
    message = os.fsdecode(result.stderr).strip()
    if result.returncode and not (may_fail and result.returncode == 1 and not message):
        raise _explain_failure(folder, words[0], message or f"exit {result.returncode}")
    return os.fsdecode(result.stdout)


def _explain_failure(folder: Path, word: str, message: str) -> GitFailedError:
    first = message.splitlines()[0].removeprefix("fatal: ")
    hint = f"git -C {folder} {word} must work; without a repository, remove its .git"
    if _REFUSED_OWNER in message:
        hint = f"if you trust its owner: git config --global --add safe.directory {_find_top(folder)}"
    return GitFailedError(f"{folder}: git {word}: {first}", hint)


def _find_top(folder: Path) -> Path:
    """Return the folder that has .git: what safe.directory names."""
    parents = (folder.absolute(), *folder.absolute().parents)
    return next((parent for parent in parents if os.path.lexists(parent / ".git")), folder)


def _make_git_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of git, which then answers in English about the folder's own repository."""
    return {name: value for name, value in env.items() if name not in REPOSITORY_VARIABLES} | {"LC_ALL": "C"}
