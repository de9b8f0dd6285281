"""The verb `lock`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drydock.cli.task_helpers import choose_variants, here, report_checked
from drydock.cli.verb import Verb
from drydock.core.console import log, write_output
from drydock.core.errors import InputError
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.model.shared_options import (
    CheckOption,
    ContextOption,
    DryRunInCopyOption,
    JsonOption,
    RowOrAllOption,
    SuppliedOption,
)

if TYPE_CHECKING:
    from drydock.model.variant import Variant


class LockOptions(DryRunInCopyOption, RowOrAllOption, CheckOption, ContextOption, SuppliedOption, JsonOption):
    """Which locks are made, and what may move."""

    upgrade: bool = False
    """take the newest of everything that the stack allows; without it, valid pins stay"""
    upgrade_package: tuple[str, ...] = ()
    """take the newest of one distribution, of one source, or of `base`; repeatable"""


@Verb
def lock_rows(options: LockOptions) -> None:
    """Pin all inputs of an image by hash in images/VARIANT/lock.json. Valid pins stay."""
    from drydock.lock import lockfile

    if options.check:
        lockfile.read_current(here(), choose_variants(options.target))
        report_checked(json=options.json)
    else:
        lock_variants(here(), choose_variants(options.target), options)


def lock_variants(
    project: Project, variants: Sequence[Variant], options: LockOptions, env: Mapping[str, str] = os.environ
) -> None:
    """Lock variants, and print what changed, which committed files are stale now, and what stays unresolved.

    Raises UnresolvedError if a named variant keeps an unresolved input, InputError for wrong options.
    """
    from drydock.inputs import overrides, sources, supplied
    from drydock.lock import lockfile, resolution, upgrade_policy
    from drydock.projects import stale_files
    from drydock.upgrade import row_record_file

    # What may move, and which folders the user names.
    if options.upgrade and options.upgrade_package:
        raise InputError("--upgrade and --upgrade-package exclude each other", hint="--upgrade covers every package")
    if options.supplied and len(variants) != 1:
        raise InputError("--supplied: names the files of one variant", hint="add --target")
    folders = dict(overrides.parse_context_folders(options.context))
    before = {variant.id: lockfile.read_previous(lockfile.path_of_lock(project, variant.id)) for variant in variants}
    upgrade = upgrade_policy.Upgrade(options.upgrade, frozenset(options.upgrade_package))
    upgrade_policy.refuse_unknown(
        upgrade, [pinned for lock in before.values() if lock for pinned in lock.platforms.values()]
    )
    if options.supplied:
        folders = {**supplied.match_folders(variants[0].supplied, [*map(Path, options.supplied)]), **folders}

    lock_paths = resolution.resolve_and_write(project, variants, folders, env, upgrade)

    # What changed, and what follows from it.
    after = {variant.id: lockfile.read_lock(lockfile.path_of_lock(project, variant.id)) for variant in variants}
    changes = {
        variant.id: row_record_file.describe_lock(project, variant, before[variant.id], after[variant.id])
        for variant in variants
        if before[variant.id] != after[variant.id]
    }
    for name, text in changes.items():
        log(f"{name}:\n{text.rstrip()}")
    for line in sources.find_lost_commits(variants, after, env):
        log(line)
    stale = stale_files.report_stale_files(project) if lock_paths else ()
    paths = [project.name_of(path) for path in lock_paths]
    missing = lockfile.list_unresolved_inputs(after)
    if options.json:
        write_output(format_json({"wrote": paths, "changes": changes, "stale": stale, "unresolved": missing}))
    else:
        log("\n".join(f"wrote {path}" for path in paths) or "nothing to change")
    if missing and options.target:
        raise lockfile.unresolved_error(missing)
    if missing:
        log(f"{len(missing)} variants have unresolved inputs: `./inv matrix --unlocked` lists them")
