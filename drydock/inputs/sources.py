"""Source code by what names it: a git commit, or a source distribution's hash → a folder that is compiled from. IO.

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
from drydock.inputs.wheels import Environment
from drydock.model.locked import LockedSource
from drydock.model.variant import SourceCode

TIMEOUT = 1800
"""Seconds for one repository: PyTorch's takes minutes on a slow line."""
AS_COMMITTED = ("-c", "core.autocrlf=false", "-c", "core.eol=lf", "-c", "core.hooksPath=/dev/null")
"""What a person's own git configuration may not change: the files are those of the commit, byte for byte."""
OF_A_REPOSITORY = frozenset(
    f"GIT_{name}"
    for name in ("DIR", "WORK_TREE", "INDEX_FILE", "COMMON_DIR", "OBJECT_DIRECTORY", "ALTERNATE_OBJECT_DIRECTORIES",
                 "NAMESPACE", "PREFIX", "SHALLOW_FILE", "GRAFT_FILE", "CEILING_DIRECTORIES")
)  # fmt: skip
"""Variables that a hook of another repository has set, where git would work in that repository instead."""


def resolve_source(
    source: SourceCode, target: Environment, store: Store, env: Mapping[str, str] = os.environ
) -> LockedSource:
    """Pin source code; one that is pinned in the matrix is taken from there. Raises InputError or FetchError."""
    if source.sdist:
        pinned = wheels.resolve_sdist(source.sdist, target, store, env)
        return LockedSource(name=source.name, sdist=pinned, verified=True, source="the index")
    if source.commit:
        known = _folder(store, source.commit).is_dir()
        return _git(source, source.commit, verified=known, said=source.source)
    return _git(source, ask(source, env), verified=True, said="the repository")


def folder(source: LockedSource, target: Environment, store: Store, env: Mapping[str, str] = os.environ) -> Path:
    """Bring source code into the store; return the folder of its files. Raises FetchError."""
    if source.sdist:
        wheels.fetch_sdists((source.sdist,), target, store, env)
        return _unpacked(source.name, store.path(source.sdist.sha256), store)
    return _checked_out(source, store, env)


def stored(source: LockedSource, store: Store) -> bool:
    """Tell whether the source code is here already."""
    if source.sdist:
        return store.has(source.sdist.sha256, source.sdist.size)
    return _folder(store, str(source.commit)).is_dir()


def _git(source: SourceCode, commit: str, *, verified: bool, said: str) -> LockedSource:
    return LockedSource(name=source.name, repository=source.repository, commit=commit, verified=verified, source=said)


def ask(source: SourceCode, env: Mapping[str, str] = os.environ) -> str:
    """Ask the repository what a tag or branch is; a tag's own commit, not the tag object.

    Raises InputError where it has no such ref, FetchError where it cannot be asked.
    """
    lines = _run(["git", "ls-remote", source.repository, source.ref, f"{source.ref}^{{}}"], source.name, env).split(
        "\n"
    )
    found = {name: commit for commit, _, name in (line.partition("\t") for line in lines) if name}
    for name in (f"refs/tags/{source.ref}^{{}}", f"refs/tags/{source.ref}", f"refs/heads/{source.ref}"):
        if name in found:
            return found[name]
    raise InputError(f"{source.repository}: has no tag or branch {source.ref!r}", hint="mend `ref`, or give a `commit`")


def _checked_out(source: LockedSource, store: Store, env: Mapping[str, str]) -> Path:
    final = _folder(store, str(source.commit))
    if final.is_dir():
        return final
    with whole_folder(final) as temporary:
        git = ["git", "-C", str(temporary), *AS_COMMITTED]
        _run([*git, "init", "--quiet"], source.name, env)
        _run([*git, "remote", "add", "origin", source.repository], source.name, env)  # submodules may be relative to it
        _run([*git, "fetch", "--quiet", "--depth", "1", "origin", str(source.commit)], source.name, env)
        _run([*git, "checkout", "--quiet", "--detach", "FETCH_HEAD"], source.name, env)
        _run([*git, "submodule", "update", "--quiet", "--init", "--recursive", "--depth", "1"], source.name, env)
        for inner in tuple(temporary.rglob(".git")):
            shutil.rmtree(inner) if inner.is_dir() else inner.unlink()
    return final


def _unpacked(name: str, archive: Path, store: Store) -> Path:
    """Unpack a source distribution, without the folder that holds all of it."""
    final = store.home / "sources" / archive.name
    if final.is_dir():
        return final
    with whole_folder(final) as temporary, tempfile.TemporaryDirectory(dir=temporary) as whole:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(whole, filter="data")
        except tarfile.TarError as error:  # also what leads out of the folder, by a path or a link
            raise FetchError(f"{name}: cannot unpack the source distribution: {error}") from error
        inner = list(Path(whole).iterdir())
        if len(inner) != 1 or not inner[0].is_dir():
            raise FetchError(f"{name}: found {len(inner)} entries in the source distribution, expected one folder")
        for path in inner[0].iterdir():
            path.rename(temporary / path.name)
    return final


def checkout(source: LockedSource, store: Store) -> Path:
    """Return where a commit's files lie, or would lie."""
    return _folder(store, str(source.commit))


def _folder(store: Store, commit: str) -> Path:
    return store.home / "sources" / commit


def _run(command: Sequence[str], name: str, env: Mapping[str, str]) -> str:
    """Run git, never asking for a password; raise FetchError with what it said."""
    outside = {name: value for name, value in env.items() if name not in OF_A_REPOSITORY}
    outside |= git_environment(read_mirrors(env), env)
    quiet = {**outside, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, env=quiet, capture_output=True, text=True, check=False, timeout=TIMEOUT, umask=0o022
        )
    except FileNotFoundError as error:
        raise FetchError(f"{name}: git is not installed", hint="apt-get install git") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{name}: git gave no answer within {TIMEOUT} s: {' '.join(command[-2:])}") from error
    if done.returncode:
        said = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
        raise FetchError(
            f"{name}: {' '.join(command[-2:])}: {said}",
            hint="`git` in mirrors.yaml names a mirror; so does git's own url.<mirror>.insteadOf",
        )
    return done.stdout
