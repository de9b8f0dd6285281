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
from drydock.core.files import disk_full, exclusive
from drydock.inputs import git
from drydock.inputs.git import NO_LIMITS, BareRepository, Limits, UnprovenError
from drydock.inputs.store import Store, place

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


def path(commit: str, store: Store) -> Path:
    """Return the path for the objects of a commit; it need not exist. Raises InputError for an invalid commit."""
    if not COMMIT.fullmatch(commit):
        raise InputError(f"commit {commit[:80]!r}: expected 40 hexadecimal digits")
    return store.home / "store" / "git" / f"{commit}.pack"


def fetch(
    name: str,
    repository: str,
    commit: str,
    store: Store,
    env: Mapping[str, str],
    limits: Limits = NO_LIMITS,
) -> None:
    """Fetch the objects of a commit and of its submodules, unless the store has them. Raises FetchError."""
    final = path(commit, store)
    if final.is_file():
        return
    with _empty_repository(name, store, env) as own:
        if final.is_file():  # another run fetched it while this one waited
            return
        parts = _parts(own, Part("", commit, repository), lambda part: _fetch_commit(own, part, env, limits))
        with _pack(own).open("wb") as file:
            own.run("pack-objects", *PACKING, data=_objects(own, parts), output=file)
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
    with _proven(name, commit, store, env) as (own, parts):
        try:
            for part in parts:
                own.run("read-tree", *((f"--prefix={part.folder}/",) if part.folder else ()), part.commit, tree=folder)
                own.run("update-index", "--force-remove", "--", *part.modules, tree=folder)
        except UnprovenError as error:
            raise FetchError(
                f"{name}: commit {commit} has paths that lead out of its folder", *error.problems
            ) from error
        own.run("checkout-index", "--all", tree=folder)


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
        wanted = [*names]
        said = self.own.run("cat-file", "--batch", data="".join(f"{self.ids[name]}\n" for name in wanted).encode())
        found, start = {}, 0
        for name in wanted:
            start = said.index(b"\n", start) + 1
            found[name] = said[start : start + self.sizes[name]]
            start += self.sizes[name] + 1
        return found


@contextlib.contextmanager
def tree(name: str, commit: str, store: Store, env: Mapping[str, str]) -> Iterator[Tree]:
    """Yield the files of a stored commit, to read some of them.

    Raises FetchError if the stored objects are not those of the commit, and then removes them.
    """
    with _proven(name, commit, store, env) as (own, _):
        listing = os.fsdecode(own.run("ls-tree", "-r", "-l", "-z", "--full-tree", commit))
        entries = [line.partition("\t") for line in listing.split("\0") if line]
        files = {path: said.split() for said, _, path in entries if said.startswith("100")}
        sizes = {path: int(words[3]) for path, words in files.items()}
        others = tuple(path for _, _, path in entries if path not in files)
        yield Tree(own, sizes, {path: words[2] for path, words in files.items()}, others)


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


def _prove(own: BareRepository, commit: str) -> list[Part]:
    """Check every object of a repository's pack; return all commits. Raises UnprovenError."""
    own.run("index-pack", str(_pack(own)))
    parts = _parts(own, Part("", commit, ""), lambda _: None)
    _objects(own, parts)
    return parts


@contextlib.contextmanager
def _proven(
    name: str, commit: str, store: Store, env: Mapping[str, str]
) -> Iterator[tuple[BareRepository, list[Part]]]:
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


def _fetch_commit(own: BareRepository, part: Part, env: Mapping[str, str], limits: Limits) -> None:
    """Fetch one commit, with the user's own configuration: mirrors, proxies, passwords."""
    variables = git.network_environment(env) | {"GIT_DIR": str(own.folder)}
    if part.folder:  # the address comes from the repository, and not from the user
        variables["GIT_PROTOCOL_FROM_USER"] = "0"
    options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    one_file = ("-c", "fetch.unpackLimit=1") if limits.largest else ()
    words = (*one_file, "fetch", *options, "--end-of-options", part.repository, part.commit)
    git.run(words, own.name, variables, cwd=own.folder, limits=limits)


# --- what a commit names --------------------------------------------------------------------------------------------


def _objects(own: BareRepository, parts: Iterable[Part]) -> bytes:
    """Return the ids of all objects that commits name, a line each, sorted. Raises UnprovenError if one is missing."""
    commits = (part.commit for part in parts)
    listed = own.run("rev-list", "--objects", "--no-object-names", "--no-walk", *commits)
    return b"".join(sorted(set(listed.splitlines(keepends=True))))


def _parts(own: BareRepository, first: Part, bring: Callable[[Part], None]) -> list[Part]:
    """Return a commit and those of its submodules, with theirs; `bring` gets each of them before it is read."""
    waiting, found = [first], []
    while waiting:
        part = waiting.pop()
        bring(part)
        if own.run("cat-file", "-t", part.commit).strip() != b"commit":
            raise UnprovenError(f"{own.name}: {part.commit} is not a commit")
        modules = dict(_modules(own, part))
        found.append(part._replace(modules=tuple(item.folder for item in modules.values())))
        waiting += modules.values()
    return found


def _modules(own: BareRepository, part: Part) -> Iterator[tuple[str, Part]]:
    """Yield the submodules of a commit, except those with `update = none`, by path."""
    listing = os.fsdecode(own.run("ls-tree", "-r", "-z", "--full-tree", part.commit))
    entries = [line.partition("\t") for line in listing.split("\0") if line]
    links = {name: described.split()[2] for described, _, name in entries if described.startswith("160000 ")}
    described = any(name == ".gitmodules" for _, _, name in entries)
    known = _modules_file(own, part.commit) if links and described else {}
    for name, commit in links.items():
        if name not in known:
            raise FetchError(f"{own.name}: .gitmodules of commit {part.commit} has no submodule at {name!a}")
        if known[name].get("update") != "none":
            folder = f"{part.folder}/{name}" if part.folder else name
            yield name, Part(folder, commit, joined(part.repository, known[name].get("url", "")))


def _modules_file(own: BareRepository, commit: str) -> dict[str, dict[str, str]]:
    """Return the submodules that a commit's .gitmodules describes, by path."""
    text = os.fsdecode(own.run("config", "--blob", f"{commit}:.gitmodules", "--no-includes", "-z", "--list"))
    sections: dict[str, dict[str, str]] = {}
    for key, _, value in (line.partition("\n") for line in text.split("\0")):
        section, _, name = key.rpartition(".")
        if section.startswith("submodule."):
            sections.setdefault(section, {})[name] = value
    return {section["path"]: section for section in sections.values() if "path" in section}


def joined(base: str, url: str) -> str:
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
