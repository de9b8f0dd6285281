"""What the verbs do with locks: build and fetch pin what is missing, `lock` also says what changed. IO."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from drydock.build import build, pins
from drydock.build.build_job import BuildOptions, Job, prepare_job
from drydock.config.matrix import read_matrix
from drydock.core.console import log, write_output
from drydock.core.errors import FetchError, InputError, StaleError, UnresolvedError
from drydock.core.files import format_json
from drydock.core.process import in_ci
from drydock.core.project import Project
from drydock.inputs import overrides, supplied
from drydock.inputs.store import default_store
from drydock.lock import lockfile
from drydock.lock.upgrade_policy import NOTHING_NEW, Upgrade, refuse_unknown
from drydock.model.locked import NOTHING, Lock, LockedImageBase, SuppliedFolders
from drydock.model.variant import SourceCode, Variant

OPERATORS = "only an operator has"
"""How a lock says that an input is in no registry and no index."""


def find_pin_refusal(*, locked: bool, offline: bool, env: Mapping[str, str] = os.environ) -> str:
    """Return what forbids to pin: an option, or CI=true, which every CI service sets; empty if nothing does."""
    if locked or offline:
        return "--locked" if locked else "--offline"
    return f"CI={env['CI']}" if in_ci(env) else ""


def job_of(
    project: Project,
    target: str,
    options: BuildOptions,
    *,
    locked: bool = False,
    supplied_folders: Sequence[str] = (),
    stand_ins: bool = False,
) -> Job:
    """Return the job of a target with everything pinned, or with stand-ins; say which committed files are stale now.

    Raises what `prepare` and `pin_missing` raise.
    """
    if stand_ins:
        from drydock.build import standins  # noqa: PLC0415 - it imports what downloads

        return standins.stand_in(project, target, options)
    job = prepare_job(project, target, options)
    pinned = pins.pin_missing(
        job,
        refused=find_pin_refusal(locked=locked, offline=options.offline),
        supplied_folders=[Path(folder) for folder in supplied_folders],
    )
    if pinned.lock != job.lock:
        say_stale(project)
    return pinned


def fetch_pins(job: Job) -> dict[str, str]:
    """Fetch everything that a job's lock pins, the base image too; return the build contexts. Raises FetchError."""
    from drydock.inputs.base_images import fetch_base  # noqa: PLC0415 - most builds do not need it

    base = job.pins.base
    if isinstance(base, LockedImageBase) and not job.offline and "base" not in job.context_overrides:
        fetch_base(base, job.platform, default_store())
    contexts = build.fetch_contexts(job)
    if job.offline:
        build.refuse_pulls(job, contexts)
    return contexts


MOST_NAMES = 5
"""Files that one line names."""


class LockOptions(NamedTuple):
    """The options of `lock`."""

    named: bool = False
    """Whether --target names the variant: then an input that stays unresolved is an error."""
    folders: SuppliedFolders = NOTHING
    given: Sequence[Path] = ()
    """Folders with files that the operator supplies."""
    upgrade: Upgrade = NOTHING_NEW
    env: Mapping[str, str] = os.environ


def parse_lock_options(
    target: str, context: Sequence[str], supplied_folders: Sequence[str], upgrade: Sequence[str], *, every: bool
) -> LockOptions:
    """Return the options of `lock` as they were typed. Raises InputError."""
    again = Upgrade(every, frozenset(upgrade))
    return LockOptions(bool(target), overrides.parse_context_folders(context), [*map(Path, supplied_folders)], again)


def lock_variants(project: Project, variants: Sequence[Variant], options: LockOptions, *, json: bool = False) -> None:
    """Lock variants, and print what changed, which committed files are stale now, and what stays unresolved.

    Raises UnresolvedError if a named variant keeps an unresolved input, InputError for wrong options.
    """
    from drydock.lock import resolution  # noqa: PLC0415 - it imports what speaks to servers; a build needs none of it

    before = {variant.id: lockfile.read_previous(lockfile.path_of_lock(project, variant.id)) for variant in variants}
    _check_upgrade(options.upgrade, before.values())
    folders = {**_match_supplied_folders(variants, options.given), **options.folders}
    lock_paths = resolution.resolve_and_write(project, variants, folders, options.env, options.upgrade)
    after = {variant.id: lockfile.read_lock(lockfile.path_of_lock(project, variant.id)) for variant in variants}
    changes = {
        variant.id: _describe_changes(project, variant, before[variant.id], after[variant.id])
        for variant in variants
        if before[variant.id] != after[variant.id]
    }
    for name, text in changes.items():
        log(f"{name}:\n{text.rstrip()}")
    for line in find_lost_commits(variants, after, options.env):
        log(line)
    stale = say_stale(project) if lock_paths else ()
    paths = [project.name_of(path) for path in lock_paths]
    if json:
        write_output(
            format_json(
                {"wrote": paths, "changes": changes, "stale": stale, "unresolved": list_unresolved_inputs(after)}
            )
        )
    else:
        log("\n".join(f"wrote {path}" for path in paths) or "nothing to change")
    _settle_unresolved(list_unresolved_inputs(after), is_named=options.named)


def _describe_changes(project: Project, variant: Variant, before: Lock | None, after: Lock) -> str:
    """Return what a lock changes; of the first lock of a user's own row, what differs from the row it stands on."""
    from drydock.lock import lock_diff  # noqa: PLC0415 - few builds pin anything
    from drydock.projects import row_record_file  # noqa: PLC0415 - as above

    parent = row_record_file.parent_lock(project, variant) if before is None else None
    return lock_diff.format_additions(parent, after) if parent else lock_diff.describe_changes(before, after)


def _check_upgrade(upgrade: Upgrade, locks: Iterable[Lock | None]) -> None:
    if upgrade.everything and upgrade.names:
        raise InputError("--upgrade and --upgrade-package exclude each other", hint="--upgrade covers every package")
    refuse_unknown(upgrade, [pinned for lock in locks if lock for pinned in lock.platforms.values()])


def _match_supplied_folders(variants: Sequence[Variant], supplied_folders: Sequence[Path]) -> dict[str, Path]:
    """Return the operator's folder for each context. Raises InputError."""
    if supplied_folders and len(variants) != 1:
        raise InputError("--supplied: names the files of one variant", hint="add --target")
    return supplied.match_folders(variants[0].supplied, supplied_folders) if supplied_folders else {}


def list_unresolved_inputs(locks: Mapping[str, Lock]) -> dict[str, dict[str, dict[str, str]]]:
    """Return variant → platform → context → why it is not pinned."""
    contexts = {
        name: {platform: dict(pinned.unresolved) for platform, pinned in lock.platforms.items() if pinned.unresolved}
        for name, lock in locks.items()
    }
    return {name: platforms for name, platforms in contexts.items() if platforms}


def _settle_unresolved(missing: Mapping[str, Mapping[str, Mapping[str, str]]], *, is_named: bool) -> None:
    """Raise UnresolvedError for a named variant; say only how many there are after locking every variant."""
    if not missing:
        return
    if not is_named:
        log(f"{len(missing)} variants have unresolved inputs: `./inv matrix --unlocked` lists them")
        return
    raise unresolved_error(missing)


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
    from drydock.inputs import sources  # noqa: PLC0415 - it imports what speaks to servers

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


def say_stale(project: Project) -> tuple[str, ...]:
    """Log which committed files no longer match the matrix and the locks, and what writes them; return the files."""
    stale_files: list[str] = []
    for command, files in _list_stale_files(project):
        if files:
            more = f" and {len(files) - MOST_NAMES} more" if len(files) > MOST_NAMES else ""
            log(f"stale now: {', '.join(files[:MOST_NAMES])}{more}: run `./inv {command}`")
        stale_files += files
    return tuple(stale_files)


def _list_stale_files(project: Project) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each command with the files that it must write. The CI files follow from locks that are current."""
    from drydock.ci import workflow  # noqa: PLC0415 - as above
    from drydock.pages import docs  # noqa: PLC0415 - few builds pin anything
    from drydock.projects import row_record_file  # noqa: PLC0415 - few builds pin anything

    variants = read_matrix(project)
    old = [variant for variant in variants if lockfile.list_lock_problems(project, variant)]
    for variant in old:
        yield f"lock --target {variant.id}", [f"images/{variant.id}/lock.json"]
    rendered = (
        lambda variant=variant: row_record_file.check_row_files(project, variant, _read_row_lock(project, variant))
        for variant in variants
        if variant not in old
    )
    yield "render", [file for check in rendered for file in _list_outdated_files(project, check)]
    if not (project.below or project.is_installed):
        yield "docs", _list_outdated_files(project, lambda: docs.check_pages(project, variants))
    if not old and workflow.list_present_workflows(project):
        yield "ci", _list_outdated_files(project, lambda: workflow.check_workflows(project, variants))


def _read_row_lock(project: Project, variant: Variant) -> Lock:
    return lockfile.read_lock(lockfile.path_of_lock(project, variant.id))


def _list_outdated_files(project: Project, check: Callable[[], None]) -> Sequence[str]:
    """Return the files that a check finds outdated."""
    try:
        check()
    except StaleError as error:
        return [project.name_of(Path(problem.partition(": ")[0])) for problem in error.problems]
    except InputError as error:  # such as a recorded host that cannot be read: no reason to end what has succeeded
        log(f"warning: not checked: {error.problems[0]}")
    return ()
