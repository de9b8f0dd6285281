"""Which locked rows `build` builds at once: all or those that changed, as far as the free disk goes. IO."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence

from drydock.build.build_job import choose_platform
from drydock.build.many import Outcome
from drydock.ci import changed
from drydock.ci.ci_rows import CiRow, list_ci_rows
from drydock.core.console import log
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.model.variant import Variant


def select_locked_rows(
    project: Project, variants: Sequence[Variant], since: str | None
) -> tuple[list[Variant], list[Outcome]]:
    """Return the locked rows, all or those that changed since a commit, and why the others were left out."""
    built, left_out = list_ci_rows(project, variants)
    reasons = {row.variant: row.why for row in left_out}
    if since is not None:
        commit = changed.resolve_commit(project, since)
        changed_rows = {row.variant: row.why for row in changed.compare_with_commit(project, variants, commit).changed}
        for name, why in changed_rows.items():
            log(f"{name}: {why}")
        built, reasons = tuple(row for row in built if row.variant in changed_rows), {}
    reasons |= dict(_list_too_large(built, _measure_free_bytes()))
    variants_by_id = {variant.id: variant for variant in variants}
    return [variants_by_id[row.variant] for row in built if row.variant not in reasons], [
        Outcome(variant=name, platform=choose_platform(variants_by_id[name], None), state="left out", why=why)
        for name, why in sorted(reasons.items())
    ]


def _measure_free_bytes() -> int:
    """Return the bytes that are free for the cache, which may not exist yet."""
    home = cache_home()
    return shutil.disk_usage(next(folder for folder in (home, *home.parents) if folder.is_dir())).free


def _list_too_large(built: Iterable[CiRow], free: int) -> Iterator[tuple[str, str]]:
    """Yield each row that does not fit the free disk with the smaller ones, and why."""
    for row in sorted(built, key=lambda row: row.disk or free):
        if row.disk is None or row.disk > free:
            yield row.variant, f"disk: it needs {row.needs}, and {max(free, 0) / 1e9:.0f} GB are free for it"
        else:
            free -= row.disk
