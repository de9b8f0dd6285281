"""Source code by git commit: its objects as one file in the store, and its files out of objects that git checked. IO.

Git computes the id of an object from its bytes. A commit names its tree by id, and a tree names its files, its folders
and the commits of its submodules by id. So the commit in a lock proves every file, whoever wrote the objects. `git
index-pack` computes all ids again at each use, and `git rev-list --objects` fails if one is missing. `git archive`
would leave out what `.gitattributes` excludes, and submodules. Sources: git-index-pack(1), git-rev-list(1),
gitformat-pack(5), gitmodules(5).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from drydock.core.console import log
from drydock.core.errors import FetchError, InputError
from drydock.core.files import disk_full, hold_lock_file
from drydock.inputs import git
from drydock.inputs.git import NO_LIMITS, BareRepository, Limits, UnprovenError
from drydock.inputs.store import Store, place_file

COMMIT = re.compile(r"[0-9a-f]{40}")
PACKING = ("--stdout", "--quiet", "--threads=1", "--window=0", "--no-reuse-object", "--no-reuse-delta")
"""Options with which a pack does not depend on how the server packs, nor on how many processors this machine has."""


class Part(NamedTuple):
    """A commit, and where it belongs."""

    folder: str
    """Folder of a submodule; empty for the commit of the lock."""
    commit: str
    repository: str
    modules: tuple[str, ...] = ()
    """Folders of its submodules, below its own."""


def pack_path(commit: str, store: Store) -> Path:
    """Return the path for the objects of a commit; it need not exist. Raises InputError for an invalid commit."""
    if not COMMIT.fullmatch(commit):
        raise InputError(f"commit {commit[:80]!r}: expected 40 hexadecimal digits")
    return store.home / "store" / "git" / f"{commit}.pack"


def fetch_objects(
    name: str,
    repository: str,
    commit: str,
    store: Store,
    env: Mapping[str, str],
    limits: Limits = NO_LIMITS,
) -> None:
    """Fetch the objects of a commit and of its submodules, unless the store has them. Raises FetchError."""
    final = pack_path(commit, store)
    if final.is_file():
        return
    with _empty_repository(name, store, env) as bare:
        if final.is_file():  # another run fetched it while this one waited
            return
        parts = _list_parts(bare, Part("", commit, repository), lambda part: _fetch_commit(bare, part, env, limits))
        with _pack_file(bare).open("wb") as file:
            bare.run("pack-objects", *PACKING, data=_list_objects(bare, parts), output=file)
        _keep_pack(_pack_file(bare), final)


def add_objects(name: str, commit: str, chunks: Iterable[bytes], store: Store) -> None:
    """Store objects that someone else packed, if they prove a commit. Raises FetchError otherwise."""
    final = pack_path(commit, store)
    with _empty_repository(name, store, os.environ) as bare:
        with _pack_file(bare).open("wb") as file:
            file.writelines(chunks)
        try:
            _check_pack(bare, commit)
        except UnprovenError as error:
            hint = "nothing was kept; get the file again from its maker"
            raise UnprovenError(f"{name}: not the objects of commit {commit}", *error.problems, hint=hint) from error
        _keep_pack(_pack_file(bare), final)


def check_out(name: str, commit: str, folder: Path, store: Store, env: Mapping[str, str]) -> None:
    """Write the files of a commit and of its submodules into an empty folder.

    Raises FetchError if the stored objects are not those of the commit, and then removes them.
    """
    with _open_proven(name, commit, store, env) as (bare, parts):
        try:
            for part in parts:
                bare.run("read-tree", *((f"--prefix={part.folder}/",) if part.folder else ()), part.commit, tree=folder)
                bare.run("update-index", "--force-remove", "--", *part.modules, tree=folder)
        except UnprovenError as error:
            raise FetchError(
                f"{name}: commit {commit} has paths that lead out of its folder", *error.problems
            ) from error
        bare.run("checkout-index", "--all", tree=folder)


class Tree(NamedTuple):
    """The files of a commit, out of objects that git checked."""

    own: BareRepository
    sizes: Mapping[str, int]
    """Path → bytes."""
    ids: Mapping[str, str]
    others: tuple[str, ...]
    """Links and submodules."""

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of some files, by path."""
        paths = [*names]
        output = self.own.run("cat-file", "--batch", data="".join(f"{self.ids[name]}\n" for name in paths).encode())
        contents, start = {}, 0
        for name in paths:
            start = output.index(b"\n", start) + 1
            contents[name] = output[start : start + self.sizes[name]]
            start += self.sizes[name] + 1
        return contents


@contextlib.contextmanager
def open_tree(name: str, commit: str, store: Store, env: Mapping[str, str]) -> Iterator[Tree]:
    """Yield the files of a stored commit, to read some of them.

    Raises FetchError if the stored objects are not those of the commit, and then removes them.
    """
    with _open_proven(name, commit, store, env) as (bare, _):
        listing = os.fsdecode(bare.run("ls-tree", "-r", "-l", "-z", "--full-tree", commit))
        entries = [line.partition("\t") for line in listing.split("\0") if line]
        files = {path: description.split() for description, _, path in entries if description.startswith("100")}
        sizes = {path: int(words[3]) for path, words in files.items()}
        other_paths = tuple(path for _, _, path in entries if path not in files)
        yield Tree(bare, sizes, {path: words[2] for path, words in files.items()}, other_paths)


def check_objects(name: str, commit: str, store: Store, env: Mapping[str, str]) -> None:
    """Raise FetchError if the stored objects are not those of the commit, and remove them."""
    with _open_proven(name, commit, store, env):
        pass


def has_all_objects(name: str, commit: str, store: Store, env: Mapping[str, str]) -> bool:
    """Tell whether the store has all objects of a commit."""
    try:
        if pack_path(commit, store).is_file():
            check_objects(name, commit, store, env)
            return True
    except UnprovenError as error:
        log(str(error))
    return False


@contextlib.contextmanager
def _empty_repository(name: str, store: Store, env: Mapping[str, str]) -> Iterator[BareRepository]:
    """Yield an empty repository. Only one run at a time uses it, and removes what a killed run left in it."""
    folder = store.home / "tmp" / "git"
    with disk_full(folder), hold_lock_file(store.home / "store" / "git" / "lock"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            bare = BareRepository(folder, name, env.get("PATH", os.defpath))
            bare.run("init", "--quiet", "--bare", "--template=")
            yield bare
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _pack_file(bare: BareRepository) -> Path:
    return bare.folder / "objects" / "pack" / "pack-0.pack"


def _check_pack(bare: BareRepository, commit: str) -> list[Part]:
    """Check every object of a repository's pack; return all commits. Raises UnprovenError."""
    bare.run("index-pack", str(_pack_file(bare)))
    parts = _list_parts(bare, Part("", commit, ""), lambda _: None)
    _list_objects(bare, parts)
    return parts


@contextlib.contextmanager
def _open_proven(
    name: str, commit: str, store: Store, env: Mapping[str, str]
) -> Iterator[tuple[BareRepository, list[Part]]]:
    """Yield a repository of the checked objects of a commit. If they are not, remove them and raise FetchError."""
    pack = pack_path(commit, store)
    try:
        with _empty_repository(name, store, env) as bare:
            place_file(pack, _pack_file(bare), executable=False)
            yield bare, _check_pack(bare, commit)
    except UnprovenError as error:
        pack.unlink(missing_ok=True)
        raise UnprovenError(
            f"{pack}: not the objects of commit {commit}: the file was changed on the disk",
            *error.problems,
            hint="the file was removed; run the same command to fetch it again",
        ) from error


def _keep_pack(pack: Path, final: Path) -> None:
    """Give a complete pack its final name; the caller holds the store's lock."""
    temporary = final.with_name(f".{final.name}")
    temporary.unlink(missing_ok=True)
    place_file(pack, temporary, executable=False)
    temporary.chmod(0o644)
    temporary.replace(final)


def _fetch_commit(bare: BareRepository, part: Part, env: Mapping[str, str], limits: Limits) -> None:
    """Fetch one commit, with the user's own configuration: mirrors, proxies, passwords."""
    variables = git.network_environment(env) | {"GIT_DIR": str(bare.folder)}
    if part.folder:  # the address comes from the repository, and not from the user
        variables["GIT_PROTOCOL_FROM_USER"] = "0"
    options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    one_file = ("-c", "fetch.unpackLimit=1") if limits.largest else ()
    words = (*one_file, "fetch", *options, "--end-of-options", part.repository, part.commit)
    git.run_limited_git(words, bare.name, variables, cwd=bare.folder, limits=limits)


# --- what a commit names --------------------------------------------------------------------------------------------


def _list_objects(bare: BareRepository, parts: Iterable[Part]) -> bytes:
    """Return the ids of all objects that commits name, a line each, sorted. Raises UnprovenError if one is missing."""
    commits = (part.commit for part in parts)
    listed = bare.run("rev-list", "--objects", "--no-object-names", "--no-walk", *commits)
    return b"".join(sorted(set(listed.splitlines(keepends=True))))


def _list_parts(bare: BareRepository, first: Part, bring: Callable[[Part], None]) -> list[Part]:
    """Return a commit and those of its submodules, with theirs; `bring` gets each of them before it is read."""
    waiting, parts = [first], []
    while waiting:
        part = waiting.pop()
        bring(part)
        if bare.run("cat-file", "-t", part.commit).strip() != b"commit":
            raise UnprovenError(f"{bare.name}: {part.commit} is not a commit")
        modules = dict(_list_submodules(bare, part))
        parts.append(part._replace(modules=tuple(item.folder for item in modules.values())))
        waiting += modules.values()
    return parts


def _list_submodules(bare: BareRepository, part: Part) -> Iterator[tuple[str, Part]]:
    """Yield the submodules of a commit, except those with `update = none`, by path."""
    listing = os.fsdecode(bare.run("ls-tree", "-r", "-z", "--full-tree", part.commit))
    entries = [line.partition("\t") for line in listing.split("\0") if line]
    links = {name: described.split()[2] for described, _, name in entries if described.startswith("160000 ")}
    described = any(name == ".gitmodules" for _, _, name in entries)
    submodules = _modules_file(bare, part.commit) if links and described else {}
    for name, commit in links.items():
        if name not in submodules:
            raise FetchError(f"{bare.name}: .gitmodules of commit {part.commit} has no submodule at {name!a}")
        if submodules[name].get("update") != "none":
            folder = f"{part.folder}/{name}" if part.folder else name
            yield name, Part(folder, commit, join_submodule_url(part.repository, submodules[name].get("url", "")))


def _modules_file(bare: BareRepository, commit: str) -> dict[str, dict[str, str]]:
    """Return the submodules that a commit's .gitmodules describes, by path."""
    text = os.fsdecode(bare.run("config", "--blob", f"{commit}:.gitmodules", "--no-includes", "-z", "--list"))
    sections: dict[str, dict[str, str]] = {}
    for key, _, value in (line.partition("\n") for line in text.split("\0")):
        section, _, name = key.rpartition(".")
        if section.startswith("submodule."):
            sections.setdefault(section, {})[name] = value
    return {section["path"]: section for section in sections.values() if "path" in section}


def join_submodule_url(base: str, url: str) -> str:
    """Return the address of a submodule: one that begins with a dot is relative to the address of its repository.

    Source: gitmodules(5), submodule.<name>.url.
    """
    if not url.startswith(("./", "../")):
        return url
    while url.startswith(("./", "../")):
        first, _, url = url.partition("/")
        base = base.rstrip("/")
        end = base.rfind("/") if "/" in base else base.rfind(":")
        base = base[: end + 1] if first == ".." else f"{base}/"
    return base + url
