"""Resolves variants into their locks. IO.

Only this uses the network. Afterwards the lock's hashes identify each file, whichever mirror serves it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from drydock.config.stack_layers import describe_replaced_lists
from drydock.core.console import log
from drydock.core.files import compute_checksum, hold_lock_file
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.inputs import supplied
from drydock.lock import code_lists, image_record, lockfile, pin, vllm_lists
from drydock.lock.upgrade_policy import BASE, NOTHING_NEW, Kept, Upgrade
from drydock.model.locked import NOTHING, Lock, LockedDebianBase, LockedImageBase, LockedPlatform, SuppliedFolders
from drydock.model.variant import Variant


def resolve_variant(
    variant: Variant,
    previous: Lock | None,
    folders: SuppliedFolders = NOTHING,
    env: Mapping[str, str] = os.environ,
    upgrade: Upgrade = NOTHING_NEW,
) -> Lock:
    """Resolve a variant to exact packages, build its base, and return the lock.

    `folders` maps contexts to folders of supplied files. What `previous` pinned stays if it still fits. What `upgrade`
    names is resolved again; an image base keeps its digest if its registry does not answer now.
    """
    old = previous.platforms if previous else {}
    pinned = next((pins.supplied for pins in old.values()), {})
    same = previous is not None and previous.inputs_sha256 == compute_checksum(lockfile.collect_lock_inputs(variant))
    platforms: dict[str, LockedPlatform] = {}
    for platform in variant.platforms:
        peers = (*platforms.values(), *(() if upgrade.covers(BASE) else old.values()))
        policy = Kept(
            old.get(platform), same, upgrade, epoch=previous.source_date_epoch if previous else None, peers=peers
        )
        platforms[platform] = pin.resolve_platform(variant, platform, folders, pinned, env, policy)
    lock = Lock(
        schema_=1,
        variant=variant.id,
        inputs_sha256=compute_checksum(lockfile.collect_lock_inputs(variant)),
        source_date_epoch=variant.epoch,
        compatibility_version=lockfile.COMPATIBILITY_VERSION,
        platforms={platform: _keep_history(variant, pins, old.get(platform)) for platform, pins in platforms.items()},
        content_sha256="0" * 64,
    )
    return lock.model_copy(update={"content_sha256": lockfile.content_sha256(lock)})


def fill_lock_platform(
    variant: Variant,
    lock: Lock,
    platform: str,
    without: Collection[str] = (),
    folders: SuppliedFolders = NOTHING,
    env: Mapping[str, str] = os.environ,
) -> Lock:
    """Return a valid lock with what one platform lacks pinned, as far as it can be today; nothing else changes.

    Contexts in `without` are not needed. Raises InputError or FetchError for files in `folders` that do not fit.
    """
    old = lock.platforms[platform]
    peers = tuple(pins for name, pins in lock.platforms.items() if name != platform)
    policy = Kept(old, same=True, without=frozenset(without), peers=peers)
    now = pin.resolve_platform(variant, platform, folders, old.supplied, env, policy)
    filled = lock.model_copy(update={"platforms": {**lock.platforms, platform: _keep_history(variant, now, old)}})
    return filled.model_copy(update={"content_sha256": lockfile.content_sha256(filled)})


def resolve_and_write(
    project: Project,
    variants: Iterable[Variant],
    folders: SuppliedFolders = NOTHING,
    env: Mapping[str, str] = os.environ,
    upgrade: Upgrade = NOTHING_NEW,
    start_locks: Mapping[str, Lock] = MappingProxyType({}),
) -> list[Path]:
    """Lock variants; return the files that changed. Valid pins stay, except those to upgrade.

    `start_locks` has the pins of variants that do not start from their own lock. The old lock stays until the new one
    is complete.
    """
    variants = tuple(variants)
    for variant in variants:
        project.check_writable(lockfile.name_of(variant.id))
    supplied.refuse_foreign(variants, folders)
    for variant in variants:
        for line in describe_replaced_lists(project, variant):
            log(f"{variant.id}: {line}")
    with hold_lock_file(path_of_resolve_mutex(env)):
        paths = (
            _lock_one(project, variant, folders, env, upgrade, start_locks.get(variant.id)) for variant in variants
        )
        return [path for path in paths if path]


def take_newest(project: Project, variants: Iterable[Variant]) -> list[Path]:
    """Lock variants with the newest of everything that their stacks allow; return the files that changed."""
    return resolve_and_write(project, variants, upgrade=Upgrade(everything=True))


def resolve_newest(variant: Variant, previous: Lock, env: Mapping[str, str] = os.environ) -> Lock:
    """Return a lock with the newest of everything that a variant's stack allows. It is written nowhere."""
    with hold_lock_file(path_of_resolve_mutex(env)):
        return resolve_variant(variant, previous, env=env, upgrade=Upgrade(everything=True))


def path_of_resolve_mutex(env: Mapping[str, str]) -> Path:
    """Return the lock file that a process holds while it resolves."""
    return cache_home(env) / "resolve.lock"


def _lock_one(
    project: Project,
    variant: Variant,
    folders: SuppliedFolders,
    env: Mapping[str, str],
    upgrade: Upgrade,
    start_lock: Lock | None,
) -> Path | None:
    previous = start_lock or read_start_lock(project, variant)
    started = time.monotonic()
    lock = resolve_variant(variant, previous, folders, env, upgrade)
    written_path = write_resolved_lock(project, variant, lock, env)
    path = written_path or lockfile.path_of_lock(project, variant.id)
    log(f"{path}: {'locked' if written_path else 'unchanged'} ({time.monotonic() - started:.0f} s)")
    return written_path


def write_resolved_lock(project: Project, variant: Variant, lock: Lock, env: Mapping[str, str]) -> Path | None:
    """Write what was resolved, and what a new vLLM says of itself; return the lock's file if it changed."""
    image_record.move_earlier_files(project, variant.id)  # before the lock loses its digest
    written_path = lockfile.write_own(project, lock)
    for path_of_lists in vllm_lists.update_lists(project, variant, lock, env):
        log(f"{path_of_lists}: what this vLLM says of itself")
    for path_of_code in code_lists.update_code(project, variant, lock, env):
        log(f"{path_of_code}: which cards this library has code for")
    for contradiction in code_lists.list_contradictions(project, variant):
        log(f"warning: {contradiction}")
    return written_path


def read_start_lock(project: Project, variant: Variant) -> Lock | None:
    """Return the lock whose pins stay: the row's own, or that of the row that a new one inherits."""
    previous = lockfile.read_previous(lockfile.path_of_lock(project, variant.id))
    if previous or not variant.inherits:
        return previous
    return lockfile.read_previous(lockfile.path_of_lock(project, variant.inherits))


def _keep_history(variant: Variant, pins: LockedPlatform, old: LockedPlatform | None) -> LockedPlatform:
    """Keep from the old lock what still applies.

    This is a digest that a registry confirmed, and the snapshot's time if the packages are the same.
    """
    if old is None:
        return pins
    # The digest of an adopted base is the stack's, never an older one.
    pins = _keep_fetched(pins if variant.is_adopted else _keep_confirmed(pins, old), old)
    if isinstance(pins.base, LockedDebianBase) and isinstance(old.base, LockedDebianBase):
        same = pins.base.model_copy(update={"snapshot": old.base.snapshot})
        pins = pins.model_copy(update={"base": same}) if same == old.base else pins
    return pins


def _keep_confirmed(pins: LockedPlatform, old: LockedPlatform) -> LockedPlatform:
    """Keep the digest that a registry confirmed before if it does not answer now."""
    base, old_base = pins.base, old.base
    if not (isinstance(base, LockedImageBase) and isinstance(old_base, LockedImageBase)):
        return pins
    if base.verified or not old_base.verified or base.reference != old_base.reference:
        return pins
    log(f"{old_base.reference}: {old_base.source} did not answer; keeping {old_base.digest}, which it confirmed before")
    unresolved = {name: reason for name, reason in pins.unresolved.items() if name != "base"}
    return pins.model_copy(update={"base": old_base, "unresolved": unresolved})


def _keep_fetched(pins: LockedPlatform, old: LockedPlatform) -> LockedPlatform:
    """Keep the mark of source code that was fetched before, possibly on another machine."""
    fetched = {(source.repository, source.pin) for source in old.sources if source.verified and source.pin}
    sources = tuple(
        source.model_copy(update={"verified": source.verified or (source.repository, source.pin) in fetched})
        for source in pins.sources
    )
    return pins.model_copy(update={"sources": sources})
