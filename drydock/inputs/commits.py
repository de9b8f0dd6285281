"""What a commit names: its files, its folders, and its submodules with theirs; all by id. IO: git.

Source of the formats: git-ls-tree(1), gitmodules(5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from drydock.core.errors import FetchError
from drydock.inputs import trees
from drydock.inputs.git import BareRepository, UnprovenError

LONGEST_LISTING = 128 << 20
"""Bytes of the list of a commit's files: a few nested trees can name more files than any disk holds."""
MOST_MODULES = 1000
LONGEST_MODULES_FILE = 1 << 20
SUBMODULE, BLOB, SKIPPED = b"160000", b"blob", b"none"


class Contents(NamedTuple):
    """All that a commit names, with its submodules."""

    objects: tuple[str, ...]
    """Ids, sorted."""
    files: bytes
    """Its files, as `git update-index -z --index-info` reads them."""


class Part(NamedTuple):
    """A commit, and where it belongs."""

    prefix: bytes
    """Folder of a submodule, with a slash at its end; empty for the commit of the lock."""
    commit: str
    repository: str


class TreeEntry(NamedTuple):
    """A line of `git ls-tree`."""

    mode: bytes
    kind: bytes
    id: str
    size: int
    path: bytes


def walk(own: BareRepository, first: Part, bring: Callable[[Part], None]) -> Contents:
    """Return all that a commit names, with its submodules; `bring` gets each commit before it is read."""
    waiting, objects, lines, budget, commits = [first], set[str](), list[bytes](), trees.Budget(own.name), 0
    while waiting:
        part = waiting.pop()
        bring(part)
        commits += 1
        if commits > MOST_MODULES:
            raise FetchError(f"{own.name}: has more than {MOST_MODULES} submodules")
        entries = _entries(own, part.commit)
        objects |= {part.commit, _tree(own, part.commit), *(item.id for item in entries if item.mode != SUBMODULE)}
        modules = dict(_modules(own, part, entries))
        waiting += modules.values()
        for entry in entries:
            budget.take(entry.size)
            if entry.path not in modules and (entry.kind == BLOB or entry.mode == SUBMODULE):
                lines.append(entry.mode + b" " + entry.id.encode() + b"\t" + part.prefix + entry.path)
    return Contents(tuple(sorted(objects)), b"".join(line + b"\0" for line in lines))


def _tree(own: BareRepository, commit: str) -> str:
    return own.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}").decode().strip()


def _entries(own: BareRepository, commit: str) -> tuple[TreeEntry, ...]:
    """Return what a commit's trees name. Raises FetchError if objects are missing, or the list is too long."""
    kind = own.run("cat-file", "-t", commit).decode().strip()
    if kind != "commit":
        raise UnprovenError(f"{own.name}: {commit} is a {kind}, expected a commit")
    listing = own.read(LONGEST_LISTING, "ls-tree", "-r", "-t", "-l", "-z", "--full-tree", commit)
    return tuple(_entry(line) for line in listing.split(b"\0") if line)


def _entry(line: bytes) -> TreeEntry:
    described, _, name = line.partition(b"\t")
    mode, kind, identity, size = described.split()
    return TreeEntry(mode, kind, identity.decode(), int(size) if size.isdigit() else 0, name)


def _modules(own: BareRepository, part: Part, entries: Iterable[TreeEntry]) -> Iterator[tuple[bytes, Part]]:
    """Yield the submodules of a commit, except those with `update = none`, by path."""
    links = {entry.path: entry.id for entry in entries if entry.mode == SUBMODULE}
    found = _modules_file(own, entries) if links else {}
    for name, commit in links.items():
        if name not in found:
            raise FetchError(
                f"{own.name}: .gitmodules of commit {part.commit} has no submodule at {name.decode(errors='replace')!r}"
            )
        if found[name].get(b"update") != SKIPPED:
            url = joined(part.repository, found[name].get(b"url", b"").decode(errors="replace"))
            yield name, Part(part.prefix + name + b"/", commit, url)


def _modules_file(own: BareRepository, entries: Iterable[TreeEntry]) -> dict[bytes, dict[bytes, bytes]]:
    """Return the submodules that a commit's .gitmodules describes, by path."""
    file = next((item for item in entries if item.path == b".gitmodules" and item.kind == BLOB), None)
    if file is None or file.size > LONGEST_MODULES_FILE:
        return {}
    text = own.run("config", "--blob", file.id, "--no-includes", "-z", "--list")
    sections: dict[bytes, dict[bytes, bytes]] = {}
    for key, _, value in (line.partition(b"\n") for line in text.split(b"\0")):
        section, _, name = key.rpartition(b".")
        if section.startswith(b"submodule."):
            sections.setdefault(section, {})[name] = value
    return {section[b"path"]: section for section in sections.values() if b"path" in section}


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
