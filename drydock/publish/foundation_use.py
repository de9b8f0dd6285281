"""Which foundations in a registry are needed by locks, of the working tree or of revisions; delete the others. IO."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drydock.config.matrix import read_matrix
from drydock.core.console import as_lines, log
from drydock.core.errors import FetchError, InputError, RegistryError
from drydock.core.files import parse_json_object
from drydock.core.project import Project
from drydock.inputs import git, indexes
from drydock.model.record import Record
from drydock.publish.foundations import find_locked_jobs, parse_foundations_address
from drydock.publish.repository import Repository
from drydock.registry.manifests import fallback_tag
from drydock.registry.registry_client import RefusedError

KEY_LENGTH = 64
"""Digits of a SHA-256: a tag of this form is a foundation, any other one belongs to another tool."""
LOCKS = "images/*/lock.json"


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
        if job.pins.image and job.pins.image.foundation:
            rows_by_key.setdefault(job.pins.image.foundation.key, set()).add(job.variant.id)
    for row, key in _list_recorded_keys(project, keep) if keep else ():
        rows_by_key.setdefault(key, set()).add(row)
    return {key: sorted(rows) for key, rows in rows_by_key.items()}


def _list_recorded_keys(project: Project, keep: str) -> Iterator[tuple[str, str]]:
    """Yield row and key of each foundation that a lock had at a revision, or at any time in a range of them."""
    first, dots, last = keep.partition("..")
    if not first or last.startswith("."):
        raise InputError(f"--keep {keep}: expected REVISION or REVISION..REVISION, such as v1.0.0..HEAD")
    end = last or ("HEAD" if dots else first)
    try:
        trees = git.in_checkout(project.root, "ls-tree", "-r", "-z", "--end-of-options", f"{end}^{{commit}}", "images")
        blobs = {line.split()[2] for line in trees.split("\0") if line.partition("\t")[2].endswith("/lock.json")}
        if dots:
            how = ("--format=", "--raw", "--no-abbrev", "--no-renames", "-m")
            where = ("--end-of-options", f"{first}..{end}", "--", f":(glob){LOCKS}")
            changes = git.in_checkout(project.root, "log", *how, *where)
            blobs |= {blob for line in changes.splitlines() if line for blob in line.split()[2:4] if blob.strip("0")}
        for blob in sorted(blobs):
            lock = git.in_checkout(project.root, "cat-file", "blob", blob)
            yield from _list_lock_keys(parse_json_object(lock, f"{keep}: lock.json {blob}"))
    except FetchError as error:
        raise InputError(
            f"--keep {keep}: {error.problems[0]}", hint="a shallow clone lacks revisions: git fetch --unshallow"
        ) from error


def _list_lock_keys(lock: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for pins in lock.get("platforms", {}).values():
        foundation = (pins.get("image") or {}).get("foundation")
        if foundation:
            yield str(lock["variant"]), str(foundation["key"])


def format_uses(foundations: Sequence[SharedFoundation]) -> str:
    """Return foundations with who needs them, one in a line."""
    lines = [
        f"{foundation.key}  {', '.join(foundation.needed_by) or 'needed by no lock'}" for foundation in foundations
    ]
    return as_lines(lines or ["no foundation"])
