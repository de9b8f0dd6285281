"""Which foundations in a registry are needed by locks, of the working tree or of revisions; delete the others. IO."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drydock.config.matrix import read_matrix
from drydock.core.console import as_lines, log
from drydock.core.errors import FetchError, InputError, RegistryError
from drydock.core.files import parse_json_object
from drydock.core.project import Project
from drydock.inputs import git, indexes
from drydock.model.record import Record, dump_record
from drydock.publish.foundations import find_locked_jobs, parse_foundations_address
from drydock.publish.repository import Repository
from drydock.registry.manifests import fallback_tag
from drydock.registry.registry_client import RefusedError

KEY_LENGTH = 64
"""Digits of a SHA-256: a tag of this form is a foundation, any other one belongs to another tool."""
FILES = ("lock.json", "record.json")
"""Names of the files in images/*/ that have keys of foundations; locks had them until drydock 0.2.0."""
_CHANGE = re.compile(r":\d+ \d+ ([0-9a-f]+) ([0-9a-f]+) [A-Z]\d*\0([^\0]+)\0")
"""A line of `git log --raw -z`: blobs before and after, and the name (git-diff(1), Raw output format)."""


class SharedFoundation(Record):
    """A foundation in a registry."""

    key: str
    """Its tag."""
    digest: str | None
    """Null if the registry no longer has it."""
    needed_by: tuple[str, ...]
    """Rows whose locks need it; none if it can be deleted."""


def list_shared_foundations(
    project: Project, registry: str, keep: str, *, insecure: bool
) -> tuple[Repository, list[SharedFoundation]]:
    """Return the foundations of a repository. `keep` is REV or REV..REV, whose locks count as the working tree's do.

    Raises InputError or RegistryError.
    """
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    repository = Repository(parse_foundations_address(registry), access, insecure=insecure)
    rows_by_key = needed_keys(project, keep)
    keys = [
        tag for tag in repository.manifests.tags() if len(tag) == KEY_LENGTH and not set(tag) - set("0123456789abcdef")
    ]
    return repository, [_read_shared_foundation(repository, key, rows_by_key.get(key, ())) for key in keys]


def _read_shared_foundation(repository: Repository, key: str, needed_by: Sequence[str]) -> SharedFoundation:
    manifest = repository.manifests.receive(key)
    return SharedFoundation(key=key, digest=manifest.digest if manifest else None, needed_by=tuple(needed_by))


def prune_foundations(
    repository: Repository, foundations: Sequence[SharedFoundation], *, yes: bool
) -> list[SharedFoundation]:
    """Return the foundations that no lock needs; delete them, with their signatures, if the user has said yes.

    Raises RegistryError if the registry does not delete.
    """
    needed_digests = {item.digest for item in foundations if item.needed_by}
    unneeded = [item for item in foundations if not item.needed_by and item.digest not in needed_digests]
    if not yes:
        if unneeded:
            log(f"nothing was deleted; --yes deletes these {len(unneeded)}")
        return unneeded
    tags = repository.manifests.tags()
    for digest in sorted({item.digest for item in unneeded if item.digest}):
        signatures = [repository.manifests.receive(tag) for tag in tags if tag.startswith(fallback_tag(digest))]
        for unwanted in (digest, *(item.digest for item in signatures if item)):
            if unwanted not in needed_digests:  # anyone may set a signature's tag on a foundation that is needed
                _delete_manifest(repository, unwanted)
    return unneeded


def _delete_manifest(repository: Repository, digest: str) -> None:
    try:
        repository.manifests.delete(digest)
    except RefusedError as error:
        raise RegistryError(
            *error.problems,
            hint="this registry does not delete: allow it there (docker-registry: storage.delete.enabled), or let its"
            " own rules for retention delete these tags",
        ) from error


def needed_keys(project: Project, keep: str) -> dict[str, list[str]]:
    """Return key → rows whose locks need that foundation. Raises InputError for revisions that git does not have."""
    rows_by_key: dict[str, set[str]] = {}
    for job in find_locked_jobs(project, read_matrix(project)):
        rows_by_key.setdefault(job.foundation_key, set()).add(job.variant.id)
        for key in _list_platform_keys(dump_record(job.record)):
            rows_by_key.setdefault(key, set()).add(job.variant.id)
    for row, key in _list_recorded_keys(project, keep) if keep else ():
        rows_by_key.setdefault(key, set()).add(row)
    return {key: sorted(rows) for key, rows in rows_by_key.items()}


def _list_recorded_keys(project: Project, keep: str) -> Iterator[tuple[str, str]]:
    """Yield row and key of each foundation that was recorded at a revision, or at any time in a range of them."""
    first, dots, last = keep.partition("..")
    if not first or last.startswith("."):
        raise InputError(f"--keep {keep}: expected REVISION or REVISION..REVISION, such as v1.0.0..HEAD")
    end = last or ("HEAD" if dots else first)
    try:
        trees = git.in_checkout(project.root, "ls-tree", "-r", "-z", "--end-of-options", f"{end}^{{commit}}", "images")
        entries = (line.partition("\t") for line in trees.split("\0"))
        blobs = {(name, entry.split()[2]) for entry, _, name in entries if name.endswith(FILES)}
        if dots:
            how = ("--format=", "--raw", "--no-abbrev", "--no-renames", "-m", "-z")
            where = ("--end-of-options", f"{first}..{end}", "--", *(f":(glob)images/*/{file}" for file in FILES))
            changes = _CHANGE.findall(git.in_checkout(project.root, "log", *how, *where))
            blobs |= {(name, blob) for before, after, name in changes for blob in (before, after) if blob.strip("0")}
        for name, blob in sorted(blobs):
            content = parse_json_object(git.in_checkout(project.root, "cat-file", "blob", blob), f"{keep}: {name}")
            for platform in content.get("platforms", {}).values():
                yield from ((name.split("/")[-2], key) for key in _list_platform_keys(platform))
    except FetchError as error:
        raise InputError(
            f"--keep {keep}: {error.problems[0]}", hint="a shallow clone lacks revisions: git fetch --unshallow"
        ) from error


def _list_platform_keys(platform: Mapping[str, Any]) -> set[str]:
    """Return the keys of foundations that a platform has in a record, or in the lock of an earlier drydock."""
    image = platform.get("verified") or platform.get("image") or {}
    keys = {(image.get("foundation") or {}).get("key")}
    keys |= {evidence["inputs_sha256"] for evidence in platform.get("foundation", {}).values()}
    return {str(key) for key in keys if key}


def format_uses(foundations: Sequence[SharedFoundation]) -> str:
    """Return foundations with who needs them, one in a line."""
    lines = [
        f"{foundation.key}  {', '.join(foundation.needed_by) or 'needed by no lock'}" for foundation in foundations
    ]
    return as_lines(lines or ["no foundation"])
