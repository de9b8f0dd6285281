"""Turns variants into lock.json, the truth about what goes into an image, and tells a lock that no longer holds. IO.

`resolve` asks the network once; afterwards the lock's hashes decide, whichever mirror serves the files.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from drydock.core.console import log
from drydock.core.errors import StaleError
from drydock.core.files import checksum, dumps, exclusive, write_atomically
from drydock.core.paths import cache_home
from drydock.inputs import supplied
from drydock.lock import pin as pinning
from drydock.model.bases import DebianBase
from drydock.model.locked import NOTHING, Brought, Lock, LockedDebianBase, LockedImageBase, LockedPlatform
from drydock.model.record import dump
from drydock.model.variant import Variant

COMPATIBILITY_VERSION = 20
"""BuildKit's docs/build-repro.md: the exporter of v0.15 to v0.31. Later ones reproduce it when told to; until v0.31 it
is what they do and cannot be chosen."""
RELOCK = "run `invoke lock`"


def path_of(root: Path, variant: str) -> Path:
    """Return where a variant's lock lies."""
    return root / "images" / variant / "lock.json"


def read_lock(path: Path) -> Lock:
    """Read a lock; raise StaleError if it is absent, broken or was edited by hand."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise StaleError(f"{path}: there is no lock", hint=RELOCK) from error
    except (OSError, UnicodeDecodeError) as error:
        raise StaleError(f"{path}: not a lock: {error}", hint=_restore(str(path))) from error
    return parse_lock(text, str(path))


def parse_lock(text: str, name: str) -> Lock:
    """Turn a lock's text into a record; `name` is what errors call it."""
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise StaleError(f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}", hint=_restore(name)) from error
    except (KeyError, RecursionError) as error:
        raise StaleError(f"{name}: not a lock: {error}", hint=_restore(name)) from error
    try:
        lock = Lock.model_validate(data)
    except ValidationError as error:
        problems = (f"{name}: {'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
        raise StaleError(*problems, hint=_restore(name)) from error
    expected = _content_sha256(data)
    if lock.content_sha256 != expected:
        raise StaleError(
            f"{name}: content_sha256 is {lock.content_sha256}, expected {expected}: it was edited by hand",
            hint=_restore(name),
        )
    return lock


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its members; raises KeyError for a key that stands twice: readers disagree on which counts."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def write_lock(path: Path, lock: Lock) -> bool:
    """Write a lock, whole or not at all, with the checksum of its content; return whether the file changed."""
    sealed = lock.model_copy(update={"content_sha256": content_sha256(lock)})
    return write_atomically(path, dumps(dump(sealed)))


def content_sha256(lock: Lock) -> str:
    """Return the checksum of all that a lock says."""
    return _content_sha256(dump(lock))


def _content_sha256(data: Mapping[str, Any]) -> str:
    return checksum({key: value for key, value in data.items() if key != "content_sha256"})


def inputs(variant: Variant) -> dict[str, Any]:
    """Return the part of a variant that resolving depends on; what is only shown or served is not among it."""
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
    """Raise StaleError if the lock was made from other inputs than the variant's; `read_lock` saw to edits by hand."""
    if lock.variant == variant.id and lock.inputs_sha256 == checksum(inputs(variant)):
        return
    changes = tuple(_changes(variant, lock)) or (
        f"images/{variant.id}/lock.json: requirements, overrides, exclusions, layers or base changed since it was made",
    )
    raise StaleError(*changes, hint=f"run `invoke lock --target {variant.id}`")


def resolve_variant(
    variant: Variant, previous: Lock | None, brought: Brought = NOTHING, env: Mapping[str, str] = os.environ
) -> Lock:
    """Resolve a variant to exact packages, make its base, and return the lock.

    `brought` gives the folders of supplied files by context; files that an earlier lock pinned stay pinned, and so does
    a base that its registry confirmed and cannot be asked for now. A digest that two builds agreed upon is kept where
    nothing that it was made from changed.
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
    """Return a lock, for this build alone, in which all that can be had today is resolved; a base may go by its tag."""
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
    """Lock variants anew; return the files that changed. Until a lock is whole the old one stays."""
    variants = tuple(variants)
    supplied.refuse_foreign(variants, brought)
    with exclusive(cache_home(env) / "resolve.lock"):
        return [path for path in (_lock_one(root, variant, brought, env) for variant in variants) if path]


def check_all(root: Path, variants: Iterable[Variant]) -> None:
    """Check every variant's lock; raise one StaleError with all that is wrong."""
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
            log(f"{variant.id}: {platform}: {context} stays unresolved: {reason}")
    changed = write_lock(path, lock)
    log(f"{path}: {'locked' if changed else 'nothing new'} ({time.monotonic() - started:.0f} s)")
    return path if changed else None


def _problems(root: Path, variant: Variant) -> tuple[str, ...]:
    try:
        check(variant, read_lock(path_of(root, variant.id)))
    except StaleError as error:
        return error.problems
    return ()


def _keep_history(pins: LockedPlatform, old: LockedPlatform | None) -> LockedPlatform:
    """Keep a registry's word, the snapshot's time while the packages stay, and the image's digest while all does."""
    if old is None:
        return pins
    pins = _keep_fetched(_keep_word(pins, old), old)
    if isinstance(pins.base, LockedDebianBase) and isinstance(old.base, LockedDebianBase):
        same = pins.base.model_copy(update={"snapshot": old.base.snapshot})
        pins = pins.model_copy(update={"base": same}) if same == old.base else pins
    same_pins = pins == old.model_copy(update={"image": None})
    return old if same_pins else pins


def _keep_word(pins: LockedPlatform, old: LockedPlatform) -> LockedPlatform:
    """Keep the digest that a registry once confirmed where it gives no answer now, and say so."""
    base, known = pins.base, old.base
    if not (isinstance(base, LockedImageBase) and isinstance(known, LockedImageBase)):
        return pins
    if base.verified or not known.verified or base.reference != known.reference:
        return pins
    log(f"{known.reference}: {known.source} gave no answer; {known.digest}, which it confirmed before, stays locked")
    unresolved = {name: reason for name, reason in pins.unresolved.items() if name != "base"}
    return pins.model_copy(update={"base": known, "unresolved": unresolved})


def _keep_fetched(pins: LockedPlatform, old: LockedPlatform) -> LockedPlatform:
    """Keep that a commit was fetched once, which this machine's store may not know."""
    fetched = {(source.repository, source.commit) for source in old.sources if source.verified and source.commit}
    sources = tuple(
        source.model_copy(update={"verified": source.verified or (source.repository, source.commit) in fetched})
        for source in pins.sources
    )
    return pins.model_copy(update={"sources": sources})


def _changes(variant: Variant, lock: Lock) -> Iterator[str]:
    """Name the inputs that differ, as far as a lock's content shows them."""
    where = f"images/{variant.id}/lock.json"
    if lock.variant != variant.id:
        yield f"{where}: made for the variant {lock.variant!r}, expected {variant.id!r}"
    if lock.source_date_epoch != variant.epoch:
        yield f"{where}: source_date_epoch is {lock.source_date_epoch}, matrix.yaml has {variant.epoch}"
    if set(lock.platforms) != set(variant.platforms):
        yield f"{where}: made for {', '.join(sorted(lock.platforms))}, matrix.yaml has {', '.join(variant.platforms)}"
    for platform in sorted(set(lock.platforms) & set(variant.platforms)):
        yield from _platform_changes(variant, lock.platforms[platform], f"{where}: platforms.{platform}")


def _platform_changes(variant: Variant, pins: LockedPlatform, where: str) -> Iterator[str]:
    layers = [layer.name for layer in variant.layers]
    if sorted(pins.layers) != sorted(layers):
        yield f"{where}.layers: made with {', '.join(sorted(pins.layers))}, the stack has {', '.join(layers)}"
    if "wheels" in pins.unresolved:
        return
    locked = {f"{wheel.name}=={wheel.version}" for wheels in pins.layers.values() for wheel in wheels}
    names = {pin.partition("==")[0] for pin in locked}
    for requirement in variant.requirements:
        if "==" in requirement and requirement not in locked:
            yield f"{where}.layers: {requirement} is required and not in it"
    for exclusion in variant.exclude:
        if exclusion.name in names:
            yield f"{where}.layers: {exclusion.name} is excluded and in it"
    yield from _base_changes(variant, pins, f"{where}.base")


def _base_changes(variant: Variant, pins: LockedPlatform, where: str) -> Iterator[str]:
    base, locked = variant.base, pins.base
    if base.kind != locked.kind:
        yield f"{where}.kind: made with {locked.kind!r}, matrix has {base.kind!r}"
    elif isinstance(base, DebianBase) and isinstance(locked, LockedDebianBase):
        missing = sorted(set(base.packages) - {deb.name for deb in locked.packages})
        if base.suite != locked.suite:
            yield f"{where}.suite: made with {locked.suite!r}, matrix has {base.suite!r}"
        if missing:
            yield f"{where}.packages: {', '.join(missing)} required and not in it"


def _restore(name: str) -> str:
    return f"`git checkout {name}` brings the committed one back, `invoke lock` makes a new one"
