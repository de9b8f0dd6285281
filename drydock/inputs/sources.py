"""Fetches source code by git commit or by a source distribution's hash, into a folder to compile from. IO.

git's own configuration decides how a repository is reached (`url.<mirror>.insteadOf`, proxies, credentials).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from drydock.config.mirrors import git_environment, read_mirrors
from drydock.core.errors import FetchError, InputError
from drydock.inputs import wheels
from drydock.inputs.store import Store, whole_folder
from drydock.inputs.uv import Environment
from drydock.model.locked import LockedSource
from drydock.model.variant import SourceCode

TIMEOUT = 1800
"""Seconds for one git command: cloning PyTorch takes minutes on a slow connection."""
FIXED_SETTINGS = ("-c", "core.autocrlf=false", "-c", "core.eol=lf", "-c", "core.hooksPath=/dev/null")
"""Settings that the user's git configuration must not change, so that the files are exactly those of the commit."""
REPOSITORY_VARIABLES = frozenset(
    f"GIT_{name}"
    for name in ("DIR", "WORK_TREE", "INDEX_FILE", "COMMON_DIR", "OBJECT_DIRECTORY", "ALTERNATE_OBJECT_DIRECTORIES",
                 "NAMESPACE", "PREFIX", "SHALLOW_FILE", "GRAFT_FILE", "CEILING_DIRECTORIES")
)  # fmt: skip
"""Variables that a git hook sets; with them, git would work in the hook's repository."""


def resolve_source(
    source: SourceCode, target: Environment, store: Store, env: Mapping[str, str] = os.environ
) -> LockedSource:
    """Pin source code; a commit in the stack is used as it is. Raises InputError or FetchError."""
    if source.sdist:
        pinned = wheels.resolve_sdist(source.sdist, target, store, env)
        return LockedSource(name=source.name, sdist=pinned, verified=True, source="the index")
    if source.commit:
        fetched = _folder(store, source.commit).is_dir()
        return _locked_git(source, source.commit, verified=fetched, origin=source.source)
    return _locked_git(source, ask(source, env), verified=True, origin="the repository")


def folder(source: LockedSource, target: Environment, store: Store, env: Mapping[str, str] = os.environ) -> Path:
    """Fetch source code into the store; return the folder of its files. Raises FetchError."""
    if source.sdist:
        wheels.fetch_sdists((source.sdist,), target, store, env)
        return _unpacked(source.name, store.path(source.sdist.sha256), store)
    return _checked_out(source, store, env)


def stored(source: LockedSource, store: Store) -> bool:
    """Tell whether the store has the source code."""
    if source.sdist:
        return store.has(source.sdist.sha256, source.sdist.size)
    return _folder(store, str(source.commit)).is_dir()


def _locked_git(source: SourceCode, commit: str, *, verified: bool, origin: str) -> LockedSource:
    return LockedSource(name=source.name, repository=source.repository, commit=commit, verified=verified, source=origin)


def ask(source: SourceCode, env: Mapping[str, str] = os.environ) -> str:
    """Return the commit of a tag or branch in the repository; for an annotated tag, the commit and not the tag object.

    Raises InputError if the repository has no such ref, FetchError if it cannot be reached.
    """
    output = _run(["git", "ls-remote", source.repository, source.ref, f"{source.ref}^{{}}"], source.name, env)
    commits: dict[str, str] = {}
    for line in output.splitlines():
        commit, _, name = line.partition("\t")
        commits[name] = commit
    for name in (f"refs/tags/{source.ref}^{{}}", f"refs/tags/{source.ref}", f"refs/heads/{source.ref}"):
        if name in commits:
            return commits[name]
    raise InputError(f"{source.repository}: has no tag or branch {source.ref!r}", hint="fix `ref`, or set `commit`")


def _checked_out(source: LockedSource, store: Store, env: Mapping[str, str]) -> Path:
    final = _folder(store, str(source.commit))
    if final.is_dir():
        return final
    with whole_folder(final) as temporary:
        git = ["git", "-C", str(temporary), *FIXED_SETTINGS]
        _run([*git, "init", "--quiet"], source.name, env)
        _run([*git, "remote", "add", "origin", source.repository], source.name, env)  # for relative submodules
        _run([*git, "fetch", "--quiet", "--depth", "1", "origin", str(source.commit)], source.name, env)
        _run([*git, "checkout", "--quiet", "--detach", "FETCH_HEAD"], source.name, env)
        _run([*git, "submodule", "update", "--quiet", "--init", "--recursive", "--depth", "1"], source.name, env)
        for inner in tuple(temporary.rglob(".git")):
            shutil.rmtree(inner) if inner.is_dir() else inner.unlink()
    return final


def _unpacked(name: str, archive: Path, store: Store) -> Path:
    """Unpack a source distribution, without its top-level folder."""
    final = store.home / "sources" / archive.name
    if final.is_dir():
        return final
    with whole_folder(final) as temporary, tempfile.TemporaryDirectory(dir=temporary) as whole:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(whole, filter="data")
        except tarfile.TarError as error:  # also for a path or link that leads out of the folder
            raise FetchError(f"{name}: cannot unpack the source distribution: {error}") from error
        inner = list(Path(whole).iterdir())
        if len(inner) != 1 or not inner[0].is_dir():
            raise FetchError(f"{name}: found {len(inner)} entries in the source distribution, expected one folder")
        for path in inner[0].iterdir():
            path.rename(temporary / path.name)
    return final


def checkout(source: LockedSource, store: Store) -> Path:
    """Return the path for the files of a commit; it need not exist."""
    return _folder(store, str(source.commit))


def _folder(store: Store, commit: str) -> Path:
    return store.home / "sources" / commit


def _run(command: Sequence[str], name: str, env: Mapping[str, str]) -> str:
    """Run git without password prompts; raise FetchError with the last line of its error output."""
    variables = {name: value for name, value in env.items() if name not in REPOSITORY_VARIABLES}
    variables |= git_environment(read_mirrors(env), env)
    variables |= {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False, timeout=TIMEOUT, umask=0o022
        )
    except FileNotFoundError as error:
        raise FetchError(f"{name}: git is not installed", hint="apt-get install git") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{name}: no answer from git within {TIMEOUT} s: {' '.join(command[-2:])}") from error
    if done.returncode:
        message = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
        raise FetchError(
            f"{name}: {' '.join(command[-2:])}: {message}",
            hint="to use a mirror, set `git` in mirrors.yaml or git's own url.<mirror>.insteadOf",
        )
    return done.stdout
