"""Says how a lock differs from the variant that it was made from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drydock.model.bases import DebianBase, ImageBase
from drydock.model.locked import Lock, LockedDebianBase, LockedImageBase, LockedPlatform, LockedWheel
from drydock.model.variant import SourceCode, Variant


def list_stale_inputs(variant: Variant, lock: Lock) -> tuple[str, ...]:
    """Return the inputs that differ, as far as the lock's content shows."""
    return tuple(_find_stale_inputs(variant, lock))


def _find_stale_inputs(variant: Variant, lock: Lock) -> Iterator[str]:
    where = f"images/{variant.id}/lock.json"
    if lock.variant != variant.id:
        yield f"{where}: locked for variant {lock.variant!r}, expected {variant.id!r}"
    if lock.source_date_epoch != variant.epoch:
        yield f"{where}: source_date_epoch is {lock.source_date_epoch}, matrix.yaml has {variant.epoch}"
    if set(lock.platforms) != set(variant.platforms):
        yield f"{where}: locked for {', '.join(sorted(lock.platforms))}, matrix.yaml has {', '.join(variant.platforms)}"
    for platform in sorted(set(lock.platforms) & set(variant.platforms)):
        yield from _compare_locked_platform(variant, lock.platforms[platform], f"{where}: platforms.{platform}")


def _compare_locked_platform(variant: Variant, pins: LockedPlatform, where: str) -> Iterator[str]:
    layers = [layer.name for layer in variant.layers]
    if sorted(pins.layers) != sorted(layers):
        yield f"{where}.layers: locked with {', '.join(sorted(pins.layers))}, the stack has {', '.join(layers)}"
    if "wheels" not in pins.unresolved:
        wheels = {wheel.name: wheel for layer in pins.layers.values() for wheel in layer}
        yield from _compare_locked_wheels(variant, wheels, f"{where}.layers")
        build = {wheel.name: wheel for wheel in pins.build}
        yield from _find_unmet_requirements(variant.build_requirements, build, f"{where}.build")
    yield from _compare_locked_base(variant, pins, f"{where}.base")
    yield from _compare_locked_sources(variant.sources, pins, f"{where}.sources")


def _compare_locked_wheels(variant: Variant, wheels: Mapping[str, LockedWheel], where: str) -> Iterator[str]:
    """Yield what the wheels do not satisfy; an override replaces every requirement of its distribution."""
    overridden = {_parse_requirement_name(override.requirement): override.requirement for override in variant.overrides}
    excluded = {canonicalize_name(exclusion.name) for exclusion in variant.exclude}
    plain_requirements = (
        line
        for line in variant.requirements
        if _parse_requirement_name(line) not in overridden and _parse_requirement_name(line) not in excluded
    )
    yield from _find_unmet_requirements(plain_requirements, wheels, where)
    override_requirements = (line for name, line in overridden.items() if name in wheels)
    yield from _find_unmet_requirements(override_requirements, wheels, where)
    yield from (f"{where}: contains {name}, which is excluded" for name in sorted(excluded & set(wheels)))


def _parse_requirement_name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _find_unmet_requirements(lines: Iterable[str], wheels: Mapping[str, LockedWheel], where: str) -> Iterator[str]:
    """Yield the requirements that no wheel satisfies; those with a marker may not apply to the image."""
    for line in lines:
        requirement = Requirement(line)
        wheel = wheels.get(canonicalize_name(requirement.name))
        if wheel is None:
            if not requirement.marker:
                yield f"{where}: missing requirement {line}"
        elif not requirement.specifier.contains(wheel.version, prereleases=True) and not requirement.marker:
            yield f"{where}: missing requirement {line}: {wheel.version} is locked"


def _compare_locked_base(variant: Variant, pins: LockedPlatform, where: str) -> Iterator[str]:
    base, locked = variant.base, pins.base
    if base.kind != locked.kind:
        yield f"{where}.kind: locked with {locked.kind!r}, expected {base.kind!r}"
    elif isinstance(base, DebianBase) and isinstance(locked, LockedDebianBase):
        missing = sorted(set(base.packages) - {deb.name for deb in locked.packages})
        if base.suite != locked.suite:
            yield f"{where}.suite: locked with {locked.suite!r}, expected {base.suite!r}"
        if missing:
            yield f"{where}.packages: missing {', '.join(missing)}"
    elif isinstance(base, ImageBase) and isinstance(locked, LockedImageBase):
        if base.reference != locked.reference:
            yield f"{where}.reference: locked with {locked.reference}, expected {base.reference}"
        if base.digest not in (None, locked.digest) and (base.adopted or not locked.verified):
            yield f"{where}.digest: locked with {locked.digest}, the stack states {base.digest}"


def _compare_locked_sources(stack_sources: Iterable[SourceCode], pins: LockedPlatform, where: str) -> Iterator[str]:
    locked_sources = {source.name: source for source in pins.sources}
    for source in stack_sources:
        locked = locked_sources.pop(source.name, None)
        if locked is None:
            yield f"{where}: missing {source.name}"
        elif source.commit and source.commit != locked.commit:
            yield f"{where}.{source.name}.commit: locked with {locked.commit}, expected {source.commit}"
        elif (source.url, source.sha256) != (locked.url, locked.sha256):
            expected = f"expected {source.url} {source.sha256}"
            yield f"{where}.{source.name}: locked with {locked.url} {locked.sha256}, {expected}"
        elif not source.sdist and source.repository != locked.repository:
            yield f"{where}.{source.name}.repository: locked with {locked.repository}, expected {source.repository}"
    yield from (f"{where}: contains {name}, which the stack does not have" for name in sorted(locked_sources))
