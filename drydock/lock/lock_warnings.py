"""What `lock` says at its end: inputs that stay unresolved, and commits that no branch leads to any more. IO."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from drydock.core.errors import FetchError, UnresolvedError
from drydock.inputs import sources
from drydock.model.locked import Lock
from drydock.model.variant import SourceCode, Variant

OPERATORS = "only an operator has"
"""How a lock says that an input is in no registry and no index."""


def list_unresolved_inputs(locks: Mapping[str, Lock]) -> dict[str, dict[str, dict[str, str]]]:
    """Return variant → platform → context → why it is not pinned."""
    contexts = {
        name: {platform: dict(pinned.unresolved) for platform, pinned in lock.platforms.items() if pinned.unresolved}
        for name, lock in locks.items()
    }
    return {name: platforms for name, platforms in contexts.items() if platforms}


def unresolved_error(missing: Mapping[str, Mapping[str, Mapping[str, str]]]) -> UnresolvedError:
    """Return the error that names every unresolved input."""
    lines = [
        f"{name}: {platform}: {context} is unresolved: {reason}"
        for name, platforms in missing.items()
        for platform, contexts in platforms.items()
        for context, reason in contexts.items()
    ]
    return UnresolvedError(*lines, hint=f"what could be pinned is; {_way_out(lines)}")


def _way_out(lines: Iterable[str]) -> str:
    """Return what to do about unresolved inputs: some only an operator has, others only a network."""
    supply = "pass the vendor's files with --supplied FOLDER" if any(OPERATORS in line for line in lines) else ""
    reached = "run it where the servers can be reached, or name mirrors in mirrors.yaml"
    return f"{supply}; for the others {reached}" if supply else reached


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
                is_lost = sources.is_lost(source, commit, env)
            except FetchError:
                silent.add(host)
                continue
            if is_lost:
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
