"""Which pins of an older lock stay: all that still fit the variant, except those to upgrade. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drydock.core.errors import InputError, suggest_nearest
from drydock.model.bases import Base, DebianBase
from drydock.model.locked import (
    LockedDeb,
    LockedDebianBase,
    LockedImageBase,
    LockedPlatform,
    LockedSource,
    LockedWheel,
)
from drydock.model.variant import SourceCode

if TYPE_CHECKING:
    from drydock.inputs.uv import Environment

BASE = "base"


class Upgrade(NamedTuple):
    """Which valid pins to resolve again."""

    everything: bool = False
    names: frozenset[str] = frozenset()
    """Distributions and sources by name, and `base`."""

    def covers(self, name: str) -> bool:
        """Tell whether a pin is to be resolved again."""
        return self.everything or name in self.names


NOTHING_NEW = Upgrade()


class Kept(NamedTuple):
    """The pins of one platform in the older lock, and what of them may stay."""

    pins: LockedPlatform | None = None
    same: bool = False
    """Whether the older lock was made from the variant's inputs as they are now."""
    upgrade: Upgrade = NOTHING_NEW
    without: frozenset[str] = frozenset()
    """Contexts that are not needed now: they stay as they are, also if they are unresolved."""
    epoch: int | None = None
    """SOURCE_DATE_EPOCH of the older lock, on which the digest of a Debian base depends."""
    peers: tuple[LockedPlatform, ...] = ()
    """Pins of the variant's other platforms: one tag has one digest for all of them."""

    def leaves_open(self, context: str) -> bool:
        """Tell whether a context stays as it is, whatever it is."""
        return self.pins is not None and self.same and context in self.without

    def keeps_wheels(self) -> bool:
        """Tell whether all wheels stay as they are."""
        if self.pins is None or not self.same or self.upgrade.everything or "wheels" in self.pins.unresolved:
            return False
        return not self.upgrade.names & {wheel.name for wheel in (*_list_layer_wheels(self.pins), *self.pins.build)}

    def list_preferred(self, *, building: bool = False) -> tuple[tuple[str, str], ...]:
        """Return the versions to take again where the requirements allow it: of the image, or of what compiles it.

        The two may have different versions of a distribution, such as setuptools.
        """
        if self.pins is None:
            return ()
        image_wheels, build_wheels = _list_layer_wheels(self.pins), self.pins.build
        wheels = {
            wheel.name: wheel.version
            for wheel in ((*image_wheels, *build_wheels) if building else (*build_wheels, *image_wheels))
        }
        return tuple((name, version) for name, version in sorted(wheels.items()) if not self.upgrade.covers(name))

    def keep_files(self, resolved_wheels: Iterable[LockedWheel], target: Environment) -> tuple[LockedWheel, ...]:
        """Return what was resolved, with the older file of a version if it still fits the interpreter."""
        from drydock.inputs.wheels import is_wheel_compatible  # noqa: PLC0415 - it imports what speaks to indexes

        old = {(w.name, w.version): w for w in (*_list_layer_wheels(self.pins), *self.pins.build)} if self.pins else {}
        pairs = ((wheel, old.get((wheel.name, wheel.version))) for wheel in resolved_wheels)
        return tuple(
            old_wheel
            if old_wheel and not self.upgrade.covers(new.name) and is_wheel_compatible(old_wheel.filename, target)
            else new
            for new, old_wheel in pairs
        )

    def kept_tools(self) -> tuple[LockedWheel, ...]:
        """Return the build tools that stay; none if they are to be resolved."""
        if self.pins is None or any(self.upgrade.covers(wheel.name) for wheel in self.pins.tools):
            return ()
        return self.pins.tools

    def kept_image(self, base: Base) -> LockedImageBase | None:
        """Return the digest that stays for the base image: this platform's, or that of another platform."""
        if self.upgrade.covers(BASE):
            return None
        for pins in (*((self.pins,) if self.pins else ()), *self.peers):
            locked_base = pins.base
            if (
                isinstance(locked_base, LockedImageBase)
                and locked_base.digest
                and _is_digest_of_base(locked_base, base)
            ):
                return locked_base
        return None

    def kept_debian(self, base: DebianBase) -> LockedDebianBase | None:
        """Return the older base if its suite is the same and it has every required package."""
        locked_base = self.pins.base if self.pins else None
        if (
            not isinstance(locked_base, LockedDebianBase)
            or self.upgrade.covers(BASE)
            or locked_base.suite != base.suite
        ):
            return None
        return locked_base if set(base.packages) <= {deb.name for deb in locked_base.packages} else None

    def kept_source(self, source_code: SourceCode) -> LockedSource | None:
        """Return the pin of some source code if it stays."""
        locked_source = (
            next((item for item in self.pins.sources if item.name == source_code.name), None) if self.pins else None
        )
        if locked_source is None or self.leaves_open(source_code.name):
            return locked_source
        if self.upgrade.covers(source_code.name):
            return None
        if source_code.sdist:
            return (
                locked_source
                if locked_source.sdist and _is_requirement_met(locked_source.sdist, source_code.sdist)
                else None
            )
        if source_code.url:
            return (
                locked_source
                if (locked_source.url, locked_source.sha256) == (source_code.url, source_code.sha256)
                else None
            )
        if not locked_source.commit or locked_source.repository != source_code.repository:
            return None
        return (
            locked_source
            if locked_source.commit == source_code.commit or (self.same and not source_code.commit)
            else None
        )


def _list_layer_wheels(pins: LockedPlatform | None) -> Sequence[LockedWheel]:
    return [wheel for wheels in pins.layers.values() for wheel in wheels] if pins else []


def _is_digest_of_base(locked_base: LockedImageBase, base: Base) -> bool:
    """Tell whether a digest is still that of the base: its registry gave it, or the stack states it."""
    if base.kind != "image" or locked_base.reference != base.reference:
        return False
    return (locked_base.verified and not base.adopted) or base.digest in (None, locked_base.digest)


def _is_requirement_met(wheel: LockedWheel, requirement: str) -> bool:
    parsed_requirement = Requirement(requirement)
    return canonicalize_name(parsed_requirement.name) == wheel.name and parsed_requirement.specifier.contains(
        wheel.version, prereleases=True
    )


def choose_debs(old: tuple[LockedDeb, ...], new: tuple[LockedDeb, ...]) -> tuple[LockedDeb, ...]:
    """Return the older packages if they are the same ones in other versions; else the new ones, which fit together."""
    return old if {deb.name for deb in old} == {deb.name for deb in new} else new


def refuse_unknown(upgrade: Upgrade, pins: Iterable[LockedPlatform]) -> None:
    """Raise InputError for a name to upgrade that none of the locks has."""
    lock_names = {BASE, *(name for platform_pins in pins for name in _all_names(platform_pins))}
    for name in sorted(upgrade.names - lock_names):
        raise InputError(f"--upgrade-package {name}: not in the lock", hint=suggest_nearest(name, lock_names))


def _all_names(pins: LockedPlatform) -> Iterator[str]:
    yield from (wheel.name for wheel in (*_list_layer_wheels(pins), *pins.build, *pins.tools))
    yield from (source.name for source in pins.sources)
