"""Resolves variants into lock.json, which pins everything that goes into an image, and detects stale locks. IO.

Only resolving uses the network. Afterwards the lock's hashes identify each file, whichever mirror serves it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import validate
from drydock.core.console import log
from drydock.core.errors import InputError, StaleError
from drydock.core.files import checksum, dumps, exclusive, loads, write_atomically
from drydock.core.paths import cache_home
from drydock.inputs import supplied
from drydock.lock import pin as pinning
from drydock.model.bases import DebianBase
from drydock.model.locked import NOTHING, Brought, Lock, LockedDebianBase, LockedImageBase, LockedPlatform
from drydock.model.record import dump
from drydock.model.variant import Variant

COMPATIBILITY_VERSION = 20
"""The exporter of BuildKit v0.15 to v0.31, which have no other; later versions can reproduce it.
Source: BuildKit's docs/build-repro.md."""
RELOCK = "run `invoke lock`"


def path_of(root: Path, variant: str) -> Path:
    """Return the path of a variant's lock."""
    return root / "images" / variant / "lock.json"


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
    sealed = lock.model_copy(update={"content_sha256": content_sha256(lock)})
    return write_atomically(path, dumps(dump(sealed)))


def content_sha256(lock: Lock) -> str:
    """Return the checksum of a lock's content."""
    return _content_sha256(dump(lock))


def _content_sha256(data: Mapping[str, Any]) -> str:
    return checksum({key: value for key, value in data.items() if key != "content_sha256"})


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
    changes = tuple(_changes(variant, lock)) or (
        f"images/{variant.id}/lock.json: requirements, overrides, exclusions, layers or base have changed since",
    )
    raise StaleError(*changes, hint=f"run `invoke lock --target {variant.id}`")


def resolve_variant(
    variant: Variant, previous: Lock | None, brought: Brought = NOTHING, env: Mapping[str, str] = os.environ
) -> Lock:
    """Resolve a variant to exact packages, build its base, and return the lock.

    `brought` maps contexts to folders of supplied files. What `previous` pinned is kept where it still applies:
    supplied files, a base that its registry confirmed before and does not answer for now, and the digest of a verified
    build if none of its inputs changed.
    """
    old = previous.platforms if previous else {}
    pinned = next((pins.supplied for pins in old.values()), {})
    platforms = {
        platform: pinning.resolve_platform(variant, platform, brought, pinned, env) for platform in variant.platforms
    }
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


def complete(variant: Variant, lock: Lock, env: Mapping[str, str] = os.environ) -> Lock:
    """Return a lock for this build only, with all that can be resolved today; a base image may be named by its tag."""
    now = resolve_variant(variant, lock, env=env)
    platforms = {
        platform: pins.model_copy(
            update={"unresolved": {name: reason for name, reason in pins.unresolved.items() if name != "base"}}
        )
        for platform, pins in now.platforms.items()
    }
    unsealed = now.model_copy(update={"platforms": platforms})
    return unsealed.model_copy(update={"content_sha256": content_sha256(unsealed)})


def resolve_and_write(
    root: Path, variants: Iterable[Variant], brought: Brought = NOTHING, env: Mapping[str, str] = os.environ
) -> list[Path]:
    """Lock variants again; return the files that changed. The old lock stays until the new one is complete."""
    variants = tuple(variants)
    supplied.refuse_foreign(variants, brought)
    with exclusive(cache_home(env) / "resolve.lock"):
        return [path for path in (_lock_one(root, variant, brought, env) for variant in variants) if path]


def check_all(root: Path, variants: Iterable[Variant]) -> None:
    """Check every variant's lock. Raises one StaleError with all problems."""
    problems = [problem for variant in variants for problem in _problems(root, variant)]
    if problems:
        raise StaleError(*problems, hint=RELOCK)


def _lock_one(root: Path, variant: Variant, brought: Brought, env: Mapping[str, str]) -> Path | None:
    path = path_of(root, variant.id)
    try:
        previous = read_lock(path)
    except StaleError:
        previous = None
    started = time.monotonic()
    lock = resolve_variant(variant, previous, brought, env)
    for platform, pins in lock.platforms.items():
        for context, reason in pins.unresolved.items():
            log(f"{variant.id}: {platform}: {context} is unresolved: {reason}")
    changed = write_lock(path, lock)
    log(f"{path}: {'locked' if changed else 'unchanged'} ({time.monotonic() - started:.0f} s)")
    return path if changed else None


def _problems(root: Path, variant: Variant) -> tuple[str, ...]:
    try:
        check(variant, read_lock(path_of(root, variant.id)))
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
    """Keep the mark of commits that were fetched before, possibly on another machine."""
    fetched = {(source.repository, source.commit) for source in old.sources if source.verified and source.commit}
    sources = tuple(
        source.model_copy(update={"verified": source.verified or (source.repository, source.commit) in fetched})
        for source in pins.sources
    )
    return pins.model_copy(update={"sources": sources})


def _changes(variant: Variant, lock: Lock) -> Iterator[str]:
    """Yield the inputs that differ, as far as the lock's content shows."""
    where = f"images/{variant.id}/lock.json"
    if lock.variant != variant.id:
        yield f"{where}: locked for variant {lock.variant!r}, expected {variant.id!r}"
    if lock.source_date_epoch != variant.epoch:
        yield f"{where}: source_date_epoch is {lock.source_date_epoch}, matrix.yaml has {variant.epoch}"
    if set(lock.platforms) != set(variant.platforms):
        yield f"{where}: locked for {', '.join(sorted(lock.platforms))}, matrix.yaml has {', '.join(variant.platforms)}"
    for platform in sorted(set(lock.platforms) & set(variant.platforms)):
        yield from _platform_changes(variant, lock.platforms[platform], f"{where}: platforms.{platform}")


def _platform_changes(variant: Variant, pins: LockedPlatform, where: str) -> Iterator[str]:
    layers = [layer.name for layer in variant.layers]
    if sorted(pins.layers) != sorted(layers):
        yield f"{where}.layers: locked with {', '.join(sorted(pins.layers))}, the stack has {', '.join(layers)}"
    if "wheels" in pins.unresolved:
        return
    locked = {f"{wheel.name}=={wheel.version}" for wheels in pins.layers.values() for wheel in wheels}
    names = {pin.partition("==")[0] for pin in locked}
    for requirement in variant.requirements:
        if "==" in requirement and requirement not in locked:
            yield f"{where}.layers: missing requirement {requirement}"
    for exclusion in variant.exclude:
        if exclusion.name in names:
            yield f"{where}.layers: contains {exclusion.name}, which is excluded"
    yield from _base_changes(variant, pins, f"{where}.base")


def _base_changes(variant: Variant, pins: LockedPlatform, where: str) -> Iterator[str]:
    base, locked = variant.base, pins.base
    if base.kind != locked.kind:
        yield f"{where}.kind: locked with {locked.kind!r}, expected {base.kind!r}"
    elif isinstance(base, DebianBase) and isinstance(locked, LockedDebianBase):
        missing = sorted(set(base.packages) - {deb.name for deb in locked.packages})
        if base.suite != locked.suite:
            yield f"{where}.suite: locked with {locked.suite!r}, expected {base.suite!r}"
        if missing:
            yield f"{where}.packages: missing {', '.join(missing)}"


def _restore(name: str) -> str:
    return f"restore it with `git checkout {name}`, or make a new one with `invoke lock`"
