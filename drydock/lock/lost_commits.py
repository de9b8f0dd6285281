"""Pinned commits that no tag or branch leads to any more, which a git host may delete. IO."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from drydock.core.errors import FetchError
from drydock.inputs import sources
from drydock.model.locked import Lock
from drydock.model.variant import SourceCode, Variant


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
