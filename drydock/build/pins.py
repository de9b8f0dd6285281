"""Pins what the lock of a job lacks, and writes that into the lock; or refuses with all that is missing. IO."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from drydock.build.build_job import Job
from drydock.core.console import log
from drydock.core.errors import UnresolvedError
from drydock.core.files import hold_lock_file
from drydock.core.process import in_ci
from drydock.inputs import overrides, supplied
from drydock.inputs.store import Store, default_store
from drydock.lock import image_record, lockfile
from drydock.model.locked import LockedDebianBase, LockedPlatform

BASE = "base"


def find_pin_refusal(*, locked: bool, offline: bool, env: Mapping[str, str] = os.environ) -> str:
    """Return what forbids to pin: an option, or CI=true, which every CI service sets; empty if nothing does."""
    if locked or offline:
        return "--locked" if locked else "--offline"
    return f"CI={env['CI']}" if in_ci(env) else ""


def pin_missing(
    job: Job, *, refused: str = "", supplied_folders: Sequence[Path] = (), env: Mapping[str, str] = os.environ
) -> Job:
    """Return the job with everything pinned that it needs. What was missing is also in the lock file then.

    `supplied_folders` are folders with files that the operator supplies. `refused` is what forbids to pin, such as
    --locked. Raises UnresolvedError that lists all that is missing, and InputError for files that do not fit.
    """
    folders = supplied.match_folders(job.variant.supplied, supplied_folders)
    _store_supplied(job, folders, default_store(env))
    job = accept_emulated_base(job)
    if not find_missing_pins(job):
        return job
    if refused:
        raise UnresolvedError(*_format_missing_pins(job, refused), hint=_suggest_lock_command(job, refused))
    from drydock.lock import resolution  # noqa: PLC0415 - it imports what speaks to servers; few builds pin anything

    path = lockfile.path_of_lock(job.project, job.variant.id)
    job.project.check_writable(f"images/{job.variant.id}/lock.json")
    with hold_lock_file(resolution.path_of_resolve_mutex(env)):
        before = lockfile.read_lock(path)  # again: another run may have pinned it
        lockfile.check_lock_inputs(job.variant, before)
        lock = resolution.fill_lock_platform(job.variant, before, job.platform, job.context_overrides, folders, env)
        image_record.move_earlier_files(job.project, job.variant.id)  # before the lock loses its digest
        written_path = lockfile.write_own(job.project, lock)
    for line in _list_new_pins(before.platforms[job.platform], lock.platforms[job.platform]):
        log(f"pinned {line}")
    if written_path:
        log(f"commit {job.project.name_of(written_path)} to share it")
    return _require_complete(replace(job, lock=lock))


def find_missing_pins(job: Job) -> dict[str, str]:
    """Return the contexts that the job needs and its lock does not pin, and why the lock does not."""
    return {name: reason for name, reason in job.pins.unresolved.items() if name not in job.context_overrides}


def _store_supplied(job: Job, folders: Mapping[str, Path], store: Store) -> None:
    """Copy supplied files that are pinned into the store, if it lacks any. Raises InputError if they do not match."""
    absent = {
        name: str(folders[name])
        for name, pins in job.pins.supplied.items()
        if name in folders and not all(store.has(pin.sha256, pin.size) for pin in pins)
    }
    overrides.resolve_contexts(job.variant, job.pins, absent)


def accept_emulated_base(job: Job) -> Job:
    """Return the job, for this build only, without the digest of a base whose packages are pinned.

    Only a machine of the base's own platform records that digest; one that emulates it can build nevertheless.
    """
    lacking = find_missing_pins(job)
    if BASE not in lacking or not isinstance(job.pins.base, LockedDebianBase):
        return job
    from drydock.inputs import wheels  # noqa: PLC0415 - it imports a resolver, which few builds need

    if wheels.is_native_platform(job.platform):
        return job
    if len(lacking) == 1:  # else it is built only after the rest is pinned, which says this again
        log(f"base: its packages are pinned; its digest stays open, which only a {job.platform} machine records")
    other_reasons = {name: reason for name, reason in job.pins.unresolved.items() if name != BASE}
    platforms = {**job.lock.platforms, job.platform: job.pins.model_copy(update={"unresolved": other_reasons})}
    return replace(job, lock=job.lock.model_copy(update={"platforms": platforms}))


def _require_complete(job: Job) -> Job:
    """Return the job if nothing is missing any more. Raises UnresolvedError."""
    job = accept_emulated_base(job)
    if find_missing_pins(job):
        hint = (
            "the lines above say why each could not be reached; a mirror goes into mirrors.yaml (docs/lock.md#mirrors)"
        )
        raise UnresolvedError(*_format_missing_pins(job), hint=hint)
    return job


def _format_missing_pins(job: Job, refused: str = "") -> Iterator[str]:
    yield f"images/{job.variant.id}/lock.json: {job.platform}: not pinned:"
    for name, reason in sorted(find_missing_pins(job).items()):
        yield f"  {name} ({_choose_context_option(job, name, refused)}): {reason}"


def _choose_context_option(job: Job, name: str, refused: str) -> str:
    """Return the option that brings a context; not --supplied, which pins, where pinning is refused."""
    if not refused and name in {item.name for item in job.variant.supplied}:
        return "--supplied FOLDER"
    return "--context base=docker-image://REFERENCE" if name == BASE else f"--context {name}=FOLDER"


def _suggest_lock_command(job: Job, refused: str) -> str:
    """Return what to do where pinning is refused."""
    to_supply = {item.name for item in job.variant.supplied} & set(find_missing_pins(job))
    command = f"`./inv lock --target {job.variant.id}{' --supplied FOLDER' if to_supply else ''}`"
    return f"{refused} pins nothing: run {command} where the servers can be reached, and commit the lock"


def _list_new_pins(old: LockedPlatform, new: LockedPlatform) -> Iterator[str]:
    """Yield what is pinned now and was not."""
    codes = {source.name: source for source in new.sources}
    for name in sorted(set(old.unresolved) - set(new.unresolved)):
        if name == BASE:
            yield f"base {getattr(new.base, 'reference', 'root file system')}@{new.base.digest}"
        elif name in codes:
            yield f"{name} {codes[name].repository}@{codes[name].commit}"
        elif name in new.supplied:
            yield f"{name}: {', '.join(file.filename for file in new.supplied[name])}"
        else:
            yield f"{name}: {len(_select_wheels(new, name))} files"


def _select_wheels(pins: LockedPlatform, name: str) -> Sequence[object]:
    return pins.tools if name == "tools" else [wheel for layer in pins.layers.values() for wheel in layer]
