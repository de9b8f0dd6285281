"""Fetches source code by git commit, or by the hash of an archive, into a folder to compile from. IO.

The store has the objects of a commit, and source distributions and release archives as files. All are checked before
each use, and unpacked afresh: a folder that was unpacked earlier is used only if it is the same, byte for byte.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from drydock.config.validation import make_record
from drydock.core.console import log
from drydock.core.errors import FetchError, InputError
from drydock.core.files import join_below
from drydock.inputs import git, git_objects, source_tree, wheels
from drydock.inputs.downloads import Wanted, download_files
from drydock.inputs.indexes import make_index_access, read_indexes
from drydock.inputs.store import Store, whole_folder
from drydock.inputs.uv import Environment
from drydock.model.locked import Lock, LockedSource
from drydock.model.variant import SourceCode, Variant


def resolve_source(
    source: SourceCode, target: Environment, store: Store, env: Mapping[str, str] = os.environ
) -> LockedSource:
    """Pin source code; a commit or a hash in the stack is used as it is. Raises InputError or FetchError."""
    if source.sdist:
        pinned = wheels.resolve_sdist(source.sdist, target, store, env)
        return LockedSource(name=source.name, sdist=pinned, verified=True, source="the index")
    if source.sha256:
        proven = store.has(source.sha256)
        pin = LockedSource(name=source.name, url=source.url, sha256=source.sha256, source=source.source)
        return pin.model_copy(update={"verified": proven})
    if source.commit:
        stored_already = git_objects.has_all_objects(source.name, source.commit, store, env)
        return _locked_git(source, source.commit, verified=stored_already, origin=source.source)
    return _locked_git(source, find_ref_commit(source, env), verified=True, origin="the repository")


def fetch_source(source: LockedSource, target: Environment, store: Store, env: Mapping[str, str] = os.environ) -> Path:
    """Fetch source code into the store; return its file: objects of git, or an archive.

    Raises FetchError. Whoever uses the file checks it.
    """
    if source.sdist:
        wheels.fetch_sdists((source.sdist,), target, store, env)
        return store.path(source.sdist.sha256)
    if source.sha256:
        if not store.has(source.sha256):
            archive = Wanted(source.filename, source.sha256, None, (source.url,))
            download_files(store, [archive], make_index_access(read_indexes(env), env))
        return store.path(source.sha256)
    git_objects.fetch_objects(source.name, source.repository, str(source.commit), store, env)
    return git_objects.pack_path(str(source.commit), store)


def make_source_folder(
    source: LockedSource, target: Environment, store: Store, env: Mapping[str, str] = os.environ
) -> Path:
    """Return a folder with exactly the files of some source code; fetch it if the store lacks it.

    Raises FetchError, also for pointers of Git LFS. What else the source code lacks is logged.
    """
    archive = fetch_source(source, target, store, env)
    key = str(source.pin)
    final = join_below(store.home / "sources", key)
    with whole_folder(final) as fresh:
        if not source.commit:
            store.verify(key)
            source_tree.unpack_source(archive, fresh, source.name)
            source_tree.warn_of_submodules(fresh, source.name)
        else:
            git_objects.check_out(source.name, key, fresh, store, env)
        source_tree.check_lfs_pointers(fresh, source.name)
        source_tree.warn_of_links(fresh, source.name)
        source_tree.settle_modes_and_times(fresh, key)
        if os.path.lexists(final) and (final.is_symlink() or not source_tree.is_same_tree(fresh, final)):
            log(f"{final}: not the files of {source.name} {key[:12]}: unpacked again")
            _remove_path(final)
    return final


def _remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def is_source_stored(source: LockedSource, store: Store) -> bool:
    """Tell whether the store has the source code."""
    if source.sdist:
        return store.has(source.sdist.sha256, source.sdist.size)
    if source.sha256:
        return store.has(source.sha256)
    return git_objects.pack_path(str(source.commit), store).is_file()


def _locked_git(source: SourceCode, commit: str, *, verified: bool, origin: str) -> LockedSource:
    pin = {"name": source.name, "repository": source.repository, "commit": commit, "verified": verified}
    return make_record(LockedSource, source.repository, {**pin, "source": origin})


def find_ref_commit(source: SourceCode, env: Mapping[str, str] = os.environ) -> str:
    """Return the commit of a tag or branch in the repository; for an annotated tag, the commit and not the tag object.

    Raises InputError if the repository has no such ref, FetchError if it cannot be reached.
    """
    if not source.ref:
        raise InputError(f"{source.name}: neither its commit nor a tag or branch is known", hint="set `commit`")
    commit = _find_named_commit(source, _list_refs(source, env, source.ref, f"{source.ref}^{{}}"))
    if not commit:
        raise InputError(f"{source.repository}: has no tag or branch {source.ref!r}", hint="fix `ref`, or set `commit`")
    return commit


def is_lost(source: SourceCode, commit: str, env: Mapping[str, str] = os.environ) -> bool:
    """Tell whether neither a tag or branch is the commit, nor the source's own branch has it in its history.

    Such a commit may be deleted by the host at any time. False for a source without tag or branch. Raises FetchError.
    """
    if not source.ref or source.sdist or git_objects.COMMIT.fullmatch(source.ref):
        return False
    refs = _list_refs(source, env)
    if commit in refs.values():
        return False
    branch = f"refs/heads/{source.ref}"
    return branch not in refs or not _has_ancestor(source, branch, commit, env)


def _has_ancestor(source: SourceCode, branch: str, commit: str, env: Mapping[str, str]) -> bool:
    """Tell whether a branch has a commit in its history, of which only the commits are fetched (--filter)."""
    variables = git.network_environment(env)
    with tempfile.TemporaryDirectory(prefix="drydock-") as folder:
        place = variables | {"GIT_DIR": folder}
        git.run_limited_git(("init", "--quiet", "--bare", "--template="), source.name, place)
        options = ("--quiet", "--filter=tree:0", "--no-tags", "--no-recurse-submodules")
        git.run_limited_git(("fetch", *options, "--end-of-options", source.repository, branch), source.name, place)
        return commit in git.run_limited_git(("rev-list", "FETCH_HEAD"), source.name, place).decode().split()


def _list_refs(source: SourceCode, env: Mapping[str, str], *patterns: str) -> dict[str, str]:
    """Return the commits of a repository's tags and branches by name. Raises FetchError."""
    words = ("ls-remote", "--end-of-options", source.repository, *patterns)
    lines = git.run_limited_git(words, source.name, git.network_environment(env)).decode().splitlines()
    return {name: commit for commit, _, name in (line.partition("\t") for line in lines)}


def _find_named_commit(source: SourceCode, refs: Mapping[str, str]) -> str:
    """Return the commit of the source's tag or branch; empty if the repository has neither."""
    names = (f"refs/tags/{source.ref}^{{}}", f"refs/tags/{source.ref}", f"refs/heads/{source.ref}")
    return next((refs[name] for name in names if name in refs), "")


def find_lost_commits(
    variants: Iterable[Variant], locks: Mapping[str, Lock], env: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Yield a warning for each pinned commit that no tag or branch leads to any more.

    A repository that does not answer, and others of its host, are not queried.
    """
    silent: set[str] = set()
    queried: set[tuple[str, str]] = set()
    for variant in variants:
        for source, commit in _list_pinned_commits(variant, locks[variant.id]):
            host = urlsplit(source.repository).netloc
            if (source.repository, commit) in queried or host in silent:
                continue
            queried.add((source.repository, commit))
            try:
                lost = is_lost(source, commit, env)
            except FetchError:
                silent.add(host)
                continue
            if lost:
                yield _format_lost_commit(variant, source, commit)


def _list_pinned_commits(variant: Variant, lock: Lock) -> Iterator[tuple[SourceCode, str]]:
    sources_by_name = {source.name: source for source in variant.sources}
    for pinned in lock.platforms.values():
        yield from ((sources_by_name[item.name], item.commit) for item in pinned.sources if item.commit)


def _format_lost_commit(variant: Variant, source: SourceCode, commit: str) -> str:
    correct = (
        f"correct its `commit` in templates/{variant.accelerator}/stacks/{variant.stack}.yaml"
        if source.commit
        else f"take the new one with `./inv lock --target {variant.id} --upgrade-package {source.name}`"
    )
    return (
        f"WARNING: {variant.id}: {source.name}: {source.ref} of {source.repository} does not lead to {commit} any more;"
        f" its host may delete it. Keep it: `./inv fetch --target {variant.id}`, then `./inv bundle create`;"
        f" or {correct}"
    )
