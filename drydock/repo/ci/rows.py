"""Which variants a CI server builds, and why not the others. Reads the locks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from drydock.lock import lockfile
from drydock.model.record import Record
from drydock.model.variant import Variant

ARCHITECTURES = {"linux/amd64": "amd64", "linux/arm64": "arm64"}
"""Platforms that hosted runners have."""


class CiRow(Record):
    """A variant that CI builds."""

    variant: str
    accelerator: str
    platform: str
    arch: str
    """amd64 or arm64: which runner builds it."""


class LeftOut(Record):
    """A variant that CI does not build."""

    variant: str
    why: str


def rows(root: Path, variants: Iterable[Variant]) -> tuple[tuple[CiRow, ...], tuple[LeftOut, ...]]:
    """Return what CI builds and what it leaves out, in the order of the matrix. Raises StaleError."""
    found = [_row(root, variant) for variant in variants]
    return tuple(row for row in found if isinstance(row, CiRow)), tuple(
        row for row in found if isinstance(row, LeftOut)
    )


def _row(root: Path, variant: Variant) -> CiRow | LeftOut:
    why = _hindrance(root, variant)
    if why:
        return LeftOut(variant=variant.id, why=why)
    (platform,) = variant.platforms
    arch = ARCHITECTURES[platform]
    return CiRow(variant=variant.id, accelerator=variant.accelerator, platform=platform, arch=arch)


def _hindrance(root: Path, variant: Variant) -> str:
    """Say why a variant is not built, or nothing."""
    if not variant.hermetic:
        return f"not hermetic: {variant.not_hermetic_because}"
    path = lockfile.path_of(root, variant.id)
    if not path.is_file():
        return "not locked: there is no lock"
    pins = lockfile.read_lock(path)
    lockfile.check(variant, pins)
    unresolved = {name for platform in pins.platforms.values() for name in platform.unresolved}
    if unresolved:
        return f"not locked: {', '.join(sorted(unresolved))}"
    if len(variant.platforms) > 1:
        return "for several platforms: their index is published from one machine that built them all"
    if variant.platforms[0] not in ARCHITECTURES:
        return f"no hosted runner is a {variant.platforms[0]}"
    return ""
