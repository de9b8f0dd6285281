"""Resolves variants into lock.json, which pins everything that goes into an image, and detects stale locks. IO.

Only resolving uses the network. Afterwards the lock's hashes identify each file, whichever mirror serves it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import validate
from drydock.core.console import log
from drydock.core.errors import InputError, StaleError
from drydock.core.files import checksum, dumps, exclusive, loads, write_atomically
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.inputs import supplied
from drydock.lock import pin as pinning
from drydock.lock import staleness
from drydock.lock.upgrade_policy import BASE, NOTHING_NEW, Kept, Upgrade
from drydock.model.locked import NOTHING, Lock, LockedDebianBase, LockedImageBase, LockedPlatform, SuppliedFolders
from drydock.model.record import dump
from drydock.model.variant import Variant

COMPATIBILITY_VERSION = 20
"""The exporter of BuildKit v0.15 to v0.31, which have no other; later versions can reproduce it.
Source: BuildKit's docs/build-repro.md."""
RELOCK = "run `./inv lock`"


def path_of(project: Project, variant: str) -> Path:
    """Return the path of a variant's lock."""
    return project / _name(variant)


def _name(variant: str) -> str:
    return f"images/{variant}/lock.json"


def read_lock(path: Path) -> Lock:
    """Read a lock. Raises StaleError if it is missing, invalid or edited by hand."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise StaleError(f"{path}: lock not found", hint=RELOCK) from error
    except (OSError, UnicodeDecodeError) as error:
        raise StaleError(f"{path}: invalid lock: {error}", hint=_restore(str(path))) from error
    return parse_lock(text, str(path))


def parse_lock(text: str, name: str) -> Lock:
    """Parse a lock's text; errors refer to it as `name`. Raises StaleError."""
    try:
        data = loads(text, object_pairs_hook=_unique)
        lock = validate(Lock, YamlDocument(name, data, {}))
    except json.JSONDecodeError as error:
        raise StaleError(
            f"{name}:{error.lineno}:{error.colno}: invalid JSON: {error.msg}", hint=_restore(name)
        ) from error
    except InputError as error:
        raise StaleError(*error.problems, hint=_restore(name)) from error
    except (KeyError, ValueError) as error:
        raise StaleError(f"{name}: invalid lock: {error}", hint=_restore(name)) from error
    expected = _content_sha256(data)
    if lock.content_sha256 != expected:
        raise StaleError(
            f"{name}: content_sha256 is {lock.content_sha256}, expected {expected}: it was edited by hand",
            hint=_restore(name),
        )
    return lock


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object as a dict. Raises KeyError for a duplicate key: parsers disagree on which value counts."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyError(f"duplicate key {key!r}")
        found[key] = value
    return found


def write_lock(path: Path, lock: Lock) -> bool:
    """Write a lock atomically, with the checksum of its content; return whether the file changed."""
    return write_atomically(path, _sealed(lock))


def write_own(project: Project, lock: Lock) -> Path | None:
    """Write a variant's lock into the project, unless it or a lower layer has the same; return the file."""
    return project.write(_name(lock.variant), _sealed(lock))


def _sealed(lock: Lock) -> str:
    return dumps(dump(lock.model_copy(update={"content_sha256": content_sha256(lock)})))


def content_sha256(lock: Lock) -> str:
    """Return the checksum of a lock's content."""
    return _content_sha256(dump(lock))


def _content_sha256(data: Mapping[str, Any]) -> str:
    return checksum({key: value for key, value in data.items() if key != "content_sha256"})


def pins_sha256(pins: LockedPlatform) -> str:
    """Return the checksum of a lock's pins for a platform, without the recorded digest of the image."""
    return checksum(dump(pins.model_copy(update={"image": None})))


def inputs(variant: Variant) -> dict[str, Any]:
    """Return what resolving depends on, without what is only displayed or used for serving."""
    return {
        "python": variant.python,
        "requirements": list(variant.requirements),
        "overrides": [override.requirement for override in variant.overrides],
        "exclude": [exclusion.name for exclusion in variant.exclude],
        "layers": [dump(layer) for layer in variant.layers],
        "base": dump(variant.base),
        "platforms": list(variant.platforms),
        "epoch": variant.epoch,
        "build_requirements": list(variant.build_requirements),
        "sources": [dump(source) for source in variant.sources],
        "supplied": {item.name: list(item.patterns) for item in variant.supplied},
        "elsewhere": [list(item.packages) for item in variant.elsewhere],
    }


def check(variant: Variant, lock: Lock) -> None:
    """Raise StaleError if the lock was made from other inputs than the variant's (`read_lock` detects manual edits)."""
    if lock.variant == variant.id and lock.inputs_sha256 == checksum(inputs(variant)):
        return
    changes = staleness.changes(variant, lock) or (
        f"images/{variant.id}/lock.json: the variant's inputs have changed since",
    )
    raise StaleError(*changes, hint=f"run `./inv lock --target {variant.id}`")


def resolve_variant(
    variant: Variant,
    previous: Lock | None,
    folders: SuppliedFolders = NOTHING,
    env: Mapping[str, str] = os.environ,
    upgrade: Upgrade = NOTHING_NEW,
) -> Lock:
    """Resolve a variant to exact packages, build its base, and return the lock.

    `folders` maps contexts to folders of supplied files. What `previous` pinned is kept where it still applies, except
    what `upgrade` names: then only a base that its registry confirmed before and does not answer for now, and the
    digest of a verified build if none of its inputs changed.
    """
    old = previous.platforms if previous else {}
    pinned = next((pins.supplied for pins in old.values()), {})
    same = previous is not None and previous.inputs_sha256 == checksum(inputs(variant))
    platforms: dict[str, LockedPlatform] = {}
    for platform in variant.platforms:
        peers = (*platforms.values(), *(() if upgrade.covers(BASE) else old.values()))
        kept = Kept(
            old.get(platform), same, upgrade, epoch=previous.source_date_epoch if previous else None, peers=peers
        )
        platforms[platform] = pinning.resolve_platform(variant, platform, folders, pinned, env, kept)
    lock = Lock(
        schema_=1,
        variant=variant.id,
        inputs_sha256=checksum(inputs(variant)),
        source_date_epoch=variant.epoch,
        compatibility_version=COMPATIBILITY_VERSION,
        platforms={platform: _keep_history(pins, old.get(platform)) for platform, pins in platforms.items()},
        content_sha256="0" * 64,
    )
    return lock.model_copy(update={"content_sha256": content_sha256(lock)})


def fill(
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
    kept = Kept(old, same=True, without=frozenset(without), peers=peers)
    now = pinning.resolve_platform(variant, platform, folders, old.supplied, env, kept)
    filled = lock.model_copy(update={"platforms": {**lock.platforms, platform: _keep_history(now, old)}})
    return filled.model_copy(update={"content_sha256": content_sha256(filled)})


def resolve_and_write(
    project: Project,
    variants: Iterable[Variant],
    folders: SuppliedFolders = NOTHING,
    env: Mapping[str, str] = os.environ,
    upgrade: Upgrade = NOTHING_NEW,
    kept: Mapping[str, Lock] = MappingProxyType({}),
) -> list[Path]:
    """Lock variants; return the files that changed. Valid pins stay, except those to upgrade.

    `kept` has the pins of variants that do not start from their own lock. The old lock stays until the new one is
    complete.
    """
    variants = tuple(variants)
    for variant in variants:
        project.check_writable(_name(variant.id))
    supplied.refuse_foreign(variants, folders)
    with exclusive(resolving(env)):
        found = (_lock_one(project, variant, folders, env, upgrade, kept.get(variant.id)) for variant in variants)
        return [path for path in found if path]


def take_newest(project: Project, variants: Iterable[Variant]) -> list[Path]:
    """Lock variants with the newest of everything that their stacks allow; return the files that changed."""
    return resolve_and_write(project, variants, upgrade=Upgrade(everything=True))


def resolving(env: Mapping[str, str]) -> Path:
    """Return the lock file that a process holds while it resolves."""
    return cache_home(env) / "resolve.lock"


HINTED = 3
"""Locks that a hint names one by one."""


def check_all(project: Project, variants: Iterable[Variant]) -> None:
    """Check every variant's lock. Raises one StaleError with all problems."""
    found = {variant.id: of for variant in variants if (of := problems(project, variant))}
    if found:
        commands = [f"`./inv lock --target {name}`" for name in found]
        hint = f"run {' and '.join(commands)}" if len(found) <= HINTED else "run `./inv lock`"
        raise StaleError(*(line for of in found.values() for line in of), hint=hint)


def read_current(project: Project, variants: Sequence[Variant]) -> list[tuple[Variant, Lock]]:
    """Return each variant with its lock. Raises one StaleError with all problems."""
    check_all(project, variants)
    return [(variant, read_lock(path_of(project, variant.id))) for variant in variants]


def _lock_one(
    project: Project,
    variant: Variant,
    folders: SuppliedFolders,
    env: Mapping[str, str],
    upgrade: Upgrade,
    kept: Lock | None,
) -> Path | None:
    path = path_of(project, variant.id)
    previous = kept or read_previous(path) or _of_the_parent(project, variant)
    started = time.monotonic()
    lock = resolve_variant(variant, previous, folders, env, upgrade)
    written = write_own(project, lock)
    log(f"{written or path}: {'locked' if written else 'unchanged'} ({time.monotonic() - started:.0f} s)")
    return written


def _of_the_parent(project: Project, variant: Variant) -> Lock | None:
    """Return the lock of the row that a new one inherits, without its digests: what both need has the same pins."""
    parent = read_previous(path_of(project, variant.inherits)) if variant.inherits else None
    if parent is None:
        return None
    pins = {platform: each.model_copy(update={"image": None}) for platform, each in parent.platforms.items()}
    return parent.model_copy(update={"platforms": pins})


def read_previous(path: Path) -> Lock | None:
    """Return the lock whose pins are kept; None, after logging why, if there is none or it is damaged."""
    try:
        return read_lock(path) if path.is_file() else None
    except StaleError as error:
        log(f"{error.problems[0]}: nothing of it is kept")
        return None


def problems(project: Project, variant: Variant) -> tuple[str, ...]:
    """Return what makes a variant's lock stale; nothing for one that is current."""
    try:
        check(variant, read_lock(path_of(project, variant.id)))
    except StaleError as error:
        return error.problems
    return ()


def _keep_history(pins: LockedPlatform, old: LockedPlatform | None) -> LockedPlatform:
    """Keep from the old lock what still applies.

    This is a digest that a registry confirmed, the snapshot's time if the packages are the same, and the image's digest
    if everything is the same.
    """
    if old is None:
        return pins
    pins = _keep_fetched(_keep_confirmed(pins, old), old)
    if isinstance(pins.base, LockedDebianBase) and isinstance(old.base, LockedDebianBase):
        same = pins.base.model_copy(update={"snapshot": old.base.snapshot})
        pins = pins.model_copy(update={"base": same}) if same == old.base else pins
    same_pins = pins == old.model_copy(update={"image": None})
    return old if same_pins else pins


def _keep_confirmed(pins: LockedPlatform, old: LockedPlatform) -> LockedPlatform:
    """Keep the digest that a registry confirmed before if it does not answer now."""
    base, known = pins.base, old.base
    if not (isinstance(base, LockedImageBase) and isinstance(known, LockedImageBase)):
        return pins
    if base.verified or not known.verified or base.reference != known.reference:
        return pins
    log(f"{known.reference}: {known.source} did not answer; keeping {known.digest}, which it confirmed before")
    unresolved = {name: reason for name, reason in pins.unresolved.items() if name != "base"}
    return pins.model_copy(update={"base": known, "unresolved": unresolved})


def _keep_fetched(pins: LockedPlatform, old: LockedPlatform) -> LockedPlatform:
    """Keep the mark of source code that was fetched before, possibly on another machine."""
    fetched = {(source.repository, source.pin) for source in old.sources if source.verified and source.pin}
    sources = tuple(
        source.model_copy(update={"verified": source.verified or (source.repository, source.pin) in fetched})
        for source in pins.sources
    )
    return pins.model_copy(update={"sources": sources})


def _restore(name: str) -> str:
    return f"restore it with `git checkout {name}`, or make a new one with `./inv lock`"
