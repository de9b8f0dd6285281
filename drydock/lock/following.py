"""The pins of a row that inherits another one, after that other row was locked again. Pure.

A merge of three: what the row pins as the other one did when it was upgraded last, it pins as that one does now. What
it pins otherwise is its own, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from drydock.core.differences import find_differences
from drydock.core.files import compute_checksum
from drydock.lock import lockfile, staleness
from drydock.lock.lockfile import assign_wheels_to_layers
from drydock.model.locked import Lock, LockedPlatform, LockedWheel
from drydock.model.record import dump_record
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
    return {platform: _compute_pin_checksums(pins) for platform, pins in lock.platforms.items()}


def follow_parent_lock(variant: Variant, lock: Lock, parent: Lock, before: Pins) -> Lock:
    """Return a row's lock with the pins of another one, which had those of `before`. Nothing is resolved.

    A platform that is not in all three stays as it is.
    """
    platforms = {
        platform: _follow_platform(variant, pins, parent.platforms[platform], before[platform])
        if platform in parent.platforms and platform in before
        else pins
        for platform, pins in lock.platforms.items()
    }
    lock_fields = {
        "inputs_sha256": compute_checksum(lockfile.collect_lock_inputs(variant)),
        "source_date_epoch": variant.epoch,
    }
    lock_fields |= {"compatibility_version": lockfile.COMPATIBILITY_VERSION}
    return lock.model_copy(update={"platforms": platforms, **lock_fields})


def list_unmet_inputs(variant: Variant, lock: Lock) -> tuple[str, ...]:
    """Return what a variant needs and such a lock lacks."""
    name = f"images/{variant.id}/lock.json: "
    return tuple(problem.removeprefix(name) for problem in staleness.list_stale_inputs(variant, lock))


def _compute_pin_checksums(pins: LockedPlatform) -> dict[str, str]:
    parts = {part: dump_record(pins)[part] for part in PARTS}
    wheels = {name: dump_record(wheel) for name, wheel in _index_locked_wheels(pins).items()}
    return {name: compute_checksum(value)[:SHORT] for name, value in {**wheels, **parts}.items()}


def _follow_platform(
    variant: Variant, pins: LockedPlatform, parent: LockedPlatform, before: Mapping[str, str]
) -> LockedPlatform:
    own_names = {name for name, _, _ in find_differences(_compute_pin_checksums(pins), before)}
    mine, theirs = _index_locked_wheels(pins), _index_locked_wheels(parent)
    chosen_wheels = ((mine if name in own_names else theirs).get(name) for name in sorted({*mine, *theirs}))
    layers = assign_wheels_to_layers(variant, [wheel for wheel in chosen_wheels if wheel])
    parts = {part: getattr(parent, part) for part in PARTS if part not in own_names}
    return pins.model_copy(update={**parts, "layers": layers})


def _index_locked_wheels(pins: LockedPlatform) -> dict[str, LockedWheel]:
    return {wheel.name: wheel for wheels in pins.layers.values() for wheel in wheels}
