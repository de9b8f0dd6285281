"""Which variants a CI server builds, and why not the others. Reads the locks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from drydock.lock import lockfile
from drydock.model.record import Record
from drydock.model.variant import Variant

ARCHITECTURES = {"linux/amd64": "amd64", "linux/arm64": "arm64"}
"""Platforms of hosted runners."""


class CiRow(Record):
    """A variant that CI builds."""

    variant: str
    accelerator: str
    platform: str
    arch: str
    """amd64 or arm64: the runner that builds it."""


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
    why = _why_not(root, variant)
    if why:
        return LeftOut(variant=variant.id, why=why)
    (platform,) = variant.platforms
    arch = ARCHITECTURES[platform]
    return CiRow(variant=variant.id, accelerator=variant.accelerator, platform=platform, arch=arch)


def _why_not(root: Path, variant: Variant) -> str:
    """Return why CI does not build a variant; empty if it does."""
    if not variant.hermetic:
        return f"not hermetic: {variant.not_hermetic_because}"
    path = lockfile.path_of(root, variant.id)
    if not path.is_file():
        return "not locked"
    pins = lockfile.read_lock(path)
    lockfile.check(variant, pins)
    unresolved = {name for platform in pins.platforms.values() for name in platform.unresolved}
    if unresolved:
        return f"not locked: {', '.join(sorted(unresolved))}"
    if len(variant.platforms) > 1:
        return "several platforms: their index must be published from one machine that has built all of them"
    if variant.platforms[0] not in ARCHITECTURES:
        return f"no hosted runner for {variant.platforms[0]}"
    return ""
