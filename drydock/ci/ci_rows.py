"""Which variants a CI server builds, and why not the others. Reads the locks."""

from __future__ import annotations

from collections.abc import Iterable

from drydock.build import render
from drydock.core.project import Project
from drydock.lock import lockfile
from drydock.model.locked import Lock, LockedDebianBase, LockedPlatform
from drydock.model.record import Record
from drydock.model.variant import Variant

ARCHITECTURES = {"linux/amd64": "amd64", "linux/arm64": "arm64"}
"""Platforms of hosted runners."""
HOSTED_DISK = 14_000_000_000
"""Bytes of disk that a job can rely on (https://docs.github.com/en/actions/reference/runners/github-hosted-runners)."""
UNPACKED = 3.5
"""Size of installed wheels in relation to their downloads. Measured: 3.5 for cpu-text-vllm0.32, 3.4 for cpu-vllm0.32,
1.9 for tpu-vllm0.21, 1.7 for cuda12.9-vllm0.18. The largest counts: only small images are near the limit."""
PACKED_COPIES = 5
"""In the store, the foundation, the image, the image that `verify` builds, and the engine."""
UNPACKED_COPIES = 3
"""In BuildKit's cache for `build` and again for `verify`, and in the engine."""


class CiRow(Record):
    """A variant that CI builds."""

    variant: str
    accelerator: str
    platform: str
    arch: str
    """amd64 or arm64: the runner that builds it."""
    disk: int | None
    """Bytes that `build` and `verify` need, by estimate; null if the lock does not know the size of an input."""

    @property
    def fits(self) -> bool:
        """Tell whether a hosted runner can build it."""
        return self.disk is not None and self.disk <= HOSTED_DISK

    @property
    def needs(self) -> str:
        """Say how much disk it needs, for a sentence."""
        return f"up to {self.disk / 1e9:.0f} GB" if self.disk is not None else "an amount that its lock does not know"


class LeftOut(Record):
    """A variant that CI does not build."""

    variant: str
    why: str


def list_ci_rows(project: Project, variants: Iterable[Variant]) -> tuple[tuple[CiRow, ...], tuple[LeftOut, ...]]:
    """Return what CI builds and what it leaves out, in the order of the matrix. Raises StaleError.

    Rows that a project takes from drydock as they are have drydock's digest, and are neither.
    """
    entries = [_make_ci_row(project, variant) for variant in variants if not _is_drydocks(project, variant)]
    return tuple(row for row in entries if isinstance(row, CiRow)), tuple(
        row for row in entries if isinstance(row, LeftOut)
    )


def list_unlocked_rows(project: Project, variants: Iterable[Variant]) -> list[Variant]:
    """Return the project's variants that have no lock, or one without a pin for each input."""
    project_variants = [variant for variant in variants if not _is_drydocks(project, variant)]
    locks = {
        variant.id: lockfile.read_previous(lockfile.path_of_lock(project, variant.id)) for variant in project_variants
    }
    return [
        variant for variant in project_variants if (lock := locks[variant.id]) is None or _list_unresolved_names(lock)
    ]


def _list_unresolved_names(lock: Lock) -> set[str]:
    return {name for platform in lock.platforms.values() for name in platform.unresolved}


def _make_ci_row(project: Project, variant: Variant) -> CiRow | LeftOut:
    why = _why_not(project, variant)
    if why:
        return LeftOut(variant=variant.id, why=why)
    (platform,) = variant.platforms
    pins = lockfile.read_lock(lockfile.path_of_lock(project, variant.id)).platforms[platform]
    return CiRow(
        variant=variant.id,
        accelerator=variant.accelerator,
        platform=platform,
        arch=ARCHITECTURES[platform],
        disk=estimate_disk(pins),
    )


def estimate_disk(pins: LockedPlatform) -> int | None:
    """Return the bytes that `build` and `verify` need, by estimate; None if an input's size is not locked. Pure.

    A lock has the sizes of wheels and packages, but not of images from registries and git repositories.
    """
    if not isinstance(pins.base, LockedDebianBase) or any(source.sdist is None for source in pins.sources):
        return None
    wheels = [wheel for layer in (*pins.layers.values(), pins.build, pins.tools) for wheel in layer]
    sdists = [source.sdist for source in pins.sources if source.sdist]
    supplied = [file for files in pins.supplied.values() for file in files]
    sizes = {file.sha256: file.size for file in (*wheels, *sdists)}
    sizes |= {file.sha256: file.size for file in supplied}
    sizes |= {deb.sha256: deb.size for deb in (*pins.base.packages, *pins.base.bootstrap)}
    return round(sum(sizes.values()) * (PACKED_COPIES + UNPACKED_COPIES * UNPACKED))


def _is_drydocks(project: Project, variant: Variant) -> bool:
    files = (lockfile.path_of_lock(project, variant.id), render.dockerfile_path(project, variant))
    return all(path.is_file() and not project.is_own(path) for path in files)


def _why_not(project: Project, variant: Variant) -> str:
    """Return why CI does not build a variant; empty if it does."""
    if not variant.hermetic:
        return f"not hermetic: {variant.not_hermetic_because}"
    path = lockfile.path_of_lock(project, variant.id)
    if not path.is_file():
        return "not locked"
    pins = lockfile.read_lock(path)
    lockfile.check_lock_inputs(variant, pins)
    unresolved = _list_unresolved_names(pins)
    if unresolved:
        return f"not locked: {', '.join(sorted(unresolved))}"
    if len(variant.platforms) > 1:
        return "several platforms: their index must be published from one machine that has built all of them"
    if variant.platforms[0] not in ARCHITECTURES:
        return f"no hosted runner for {variant.platforms[0]}"
    return ""
