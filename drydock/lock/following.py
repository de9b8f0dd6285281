"""The pins of a row that inherits another one, after that other row was locked again. Pure.

A merge of three: what the row pins as the other one did when it was upgraded last, it pins as that one does now. What
it pins otherwise is its own, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from drydock.core.differences import differences
from drydock.core.files import checksum
from drydock.lock import lockfile, staleness
from drydock.lock.layers import split
from drydock.model.locked import Lock, LockedPlatform, LockedWheel
from drydock.model.record import dump
from drydock.model.variant import Variant

PARTS = ("base", "tools", "build", "sources", "supplied", "unresolved")
"""Fields of a platform's pins that stay or follow as a whole; distributions do so one by one."""
SHORT = 16
"""Characters of a checksum that only tells changes apart."""
UNKNOWN = "0" * 64
"""For a checksum of inputs: no variant has these, so that all is resolved again."""

Pins = Mapping[str, Mapping[str, str]]
"""Platform → distribution or part → checksum of what a lock has of it."""


def pins_of(lock: Lock) -> Pins:
    """Return what a lock pins, in short, to tell later what has changed."""
    return {platform: _checksums(pins) for platform, pins in lock.platforms.items()}


def follow(variant: Variant, lock: Lock, other: Lock, before: Pins) -> Lock:
    """Return a row's lock with the pins of another one, which had those of `before`. Nothing is resolved.

    A platform that is not in all three stays as it is.
    """
    platforms = {
        platform: _follow(variant, pins, other.platforms[platform], before[platform])
        if platform in other.platforms and platform in before
        else pins
        for platform, pins in lock.platforms.items()
    }
    made = {"inputs_sha256": checksum(lockfile.inputs(variant)), "source_date_epoch": variant.epoch}
    made |= {"compatibility_version": lockfile.COMPATIBILITY_VERSION}
    return lock.model_copy(update={"platforms": platforms, **made})


def unmet(variant: Variant, lock: Lock) -> tuple[str, ...]:
    """Return what a variant needs and such a lock lacks."""
    name = f"images/{variant.id}/lock.json: "
    return tuple(problem.removeprefix(name) for problem in staleness.changes(variant, lock))


def _checksums(pins: LockedPlatform) -> dict[str, str]:
    parts = {part: dump(pins)[part] for part in PARTS}
    wheels = {name: dump(wheel) for name, wheel in _wheels(pins).items()}
    return {name: checksum(value)[:SHORT] for name, value in {**wheels, **parts}.items()}


def _follow(variant: Variant, pins: LockedPlatform, other: LockedPlatform, before: Mapping[str, str]) -> LockedPlatform:
    own = {name for name, _, _ in differences(_checksums(pins), before)}
    mine, theirs = _wheels(pins), _wheels(other)
    found = ((mine if name in own else theirs).get(name) for name in sorted({*mine, *theirs}))
    layers = split(variant, [wheel for wheel in found if wheel])
    parts = {part: getattr(other, part) for part in PARTS if part not in own}
    new = pins.model_copy(update={**parts, "layers": layers, "image": None})
    return pins if new == pins.model_copy(update={"image": None}) else new


def _wheels(pins: LockedPlatform) -> dict[str, LockedWheel]:
    return {wheel.name: wheel for wheels in pins.layers.values() for wheel in wheels}
