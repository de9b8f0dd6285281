"""Source code by git commit: its objects as one file in the store, and its files out of objects that git checked. IO.

Git computes the id of an object from its bytes. A commit names its tree by id, and a tree names its files, its folders
and the commits of its submodules by id. So the commit in a lock proves every file, whoever wrote the objects. `git
index-pack` computes all ids again at each use. Sources: git-index-pack(1), gitformat-pack(5).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from drydock.core.console import log
from drydock.core.errors import FetchError, InputError
from drydock.core.files import disk_full, exclusive
from drydock.inputs import git
from drydock.inputs.commits import Contents, Part, walk
from drydock.inputs.git import BareRepository, UnprovenError
from drydock.inputs.store import Store, place

COMMIT = re.compile(r"[0-9a-f]{40}")
PACKING = ("--stdout", "--quiet", "--threads=1", "--window=0", "--no-reuse-object", "--no-reuse-delta")
"""Options with which a pack does not depend on how the server packs, nor on how many processors this machine has."""


def path(commit: str, store: Store) -> Path:
    """Return the path for the objects of a commit; it need not exist. Raises InputError for an invalid commit."""
    if not COMMIT.fullmatch(commit):
        raise InputError(f"commit {commit[:80]!r}: expected 40 hexadecimal digits")
    return store.home / "store" / "git" / f"{commit}.pack"


def fetch(name: str, repository: str, commit: str, store: Store, env: Mapping[str, str]) -> None:
    """Fetch the objects of a commit and of its submodules, unless the store has them. Raises FetchError."""
    final = path(commit, store)
    if final.is_file():
        return
    with _empty_repository(name, store, env) as own:
        if final.is_file():  # another run fetched it while this one waited
            return
        contents = walk(own, Part(b"", commit, repository), lambda part: _fetch_commit(own, part, env))
        ids = "".join(f"{item}\n" for item in contents.objects).encode()
        with _pack(own).open("wb") as file:
            own.run("pack-objects", *PACKING, data=ids, output=file)
        _keep(_pack(own), final)


def add(name: str, commit: str, chunks: Iterable[bytes], store: Store) -> None:
    """Store objects that someone else packed, if they prove a commit. Raises FetchError otherwise."""
    final = path(commit, store)
    with _empty_repository(name, store, os.environ) as own:
        with _pack(own).open("wb") as file:
            file.writelines(chunks)
        try:
            _prove(own, commit)
        except UnprovenError as error:
            hint = "nothing was kept; get the file again from its maker"
            raise UnprovenError(f"{name}: not the objects of commit {commit}", *error.problems, hint=hint) from error
        _keep(_pack(own), final)


def check_out(name: str, commit: str, folder: Path, store: Store, env: Mapping[str, str]) -> None:
    """Write the files of a commit and of its submodules into an empty folder.

    Raises FetchError if the stored objects are not those of the commit, and then removes them.
    """
    with _proven(name, commit, store, env) as (own, contents):
        own.run("update-index", "-z", "--index-info", data=contents.files)
        if own.run("ls-files", "-z").count(b"\0") != contents.files.count(b"\0"):  # git left out `..` and `.git`
            raise FetchError(f"{name}: commit {commit} has paths that lead out of its folder, or the same path twice")
        own.run("checkout-index", "--all", tree=folder)


def check(name: str, commit: str, store: Store, env: Mapping[str, str]) -> None:
    """Raise FetchError if the stored objects are not those of the commit, and remove them."""
    with _proven(name, commit, store, env):
        pass


def proves(name: str, commit: str, store: Store, env: Mapping[str, str]) -> bool:
    """Tell whether the store has all objects of a commit."""
    try:
        if path(commit, store).is_file():
            check(name, commit, store, env)
            return True
    except UnprovenError as error:
        log(str(error))
    return False


@contextlib.contextmanager
def _empty_repository(name: str, store: Store, env: Mapping[str, str]) -> Iterator[BareRepository]:
    """Yield an empty repository. Only one run at a time uses it, and removes what a killed run left in it."""
    folder = store.home / "tmp" / "git"
    with disk_full(folder), exclusive(store.home / "store" / "git" / "lock"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            own = BareRepository(folder, name, env.get("PATH", os.defpath))
            own.run("init", "--quiet", "--bare", "--template=")
            yield own
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _pack(own: BareRepository) -> Path:
    return own.folder / "objects" / "pack" / "pack-0.pack"


def _prove(own: BareRepository, commit: str) -> Contents:
    """Check every object of a repository's pack; return all that a commit names. Raises UnprovenError."""
    own.run("index-pack", str(_pack(own)))
    return walk(own, Part(b"", commit, ""), lambda _: None)


@contextlib.contextmanager
def _proven(name: str, commit: str, store: Store, env: Mapping[str, str]) -> Iterator[tuple[BareRepository, Contents]]:
    """Yield a repository of the checked objects of a commit. If they are not, remove them and raise FetchError."""
    pack = path(commit, store)
    try:
        with _empty_repository(name, store, env) as own:
            place(pack, _pack(own), executable=False)
            yield own, _prove(own, commit)
    except UnprovenError as error:
        pack.unlink(missing_ok=True)
        raise UnprovenError(
            f"{pack}: not the objects of commit {commit}: the file was changed on the disk",
            *error.problems,
            hint="the file was removed; run the same command to fetch it again",
        ) from error


def _keep(pack: Path, final: Path) -> None:
    """Give a complete pack its final name; the caller holds the store's lock."""
    temporary = final.with_name(f".{final.name}")
    temporary.unlink(missing_ok=True)
    place(pack, temporary, executable=False)
    temporary.chmod(0o644)
    temporary.replace(final)


def _fetch_commit(own: BareRepository, part: Part, env: Mapping[str, str]) -> None:
    """Fetch one commit, with the user's own configuration: mirrors, proxies, passwords."""
    variables = git.network_environment(env) | {"GIT_DIR": str(own.folder)}
    if part.prefix:  # the address comes from the repository, and not from the user
        variables["GIT_PROTOCOL_FROM_USER"] = "0"
    options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    git.run(("fetch", *options, "--end-of-options", part.repository, part.commit), own.name, variables, cwd=own.folder)
