"""Pins one platform of a variant: exact wheels, packages, commits and digests, or why one is unresolved. IO."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from drydock.core.console import log
from drydock.core.errors import DrydockError, FetchError, InputError
from drydock.inputs import debs, fetch, images, rootfs, sources, supplied
from drydock.inputs import wheels as resolve
from drydock.inputs.store import Store, default_store
from drydock.inputs.uv import UV_MACHINES, Environment, ResolveRequest
from drydock.model.bases import DebianBase
from drydock.model.locked import (
    Brought,
    LockedDebianBase,
    LockedFile,
    LockedImageBase,
    LockedPlatform,
    LockedSource,
    LockedWheel,
)
from drydock.model.variant import Variant
from drydock.oci import layout as oci

BOOTSTRAP = ("apt", "mmdebstrap")


class ResolveTarget(NamedTuple):
    """What to resolve for: variant, platform and interpreter; and the store and environment to use."""

    variant: Variant
    platform: str
    target: Environment
    store: Store
    env: Mapping[str, str]


def resolve_platform(
    variant: Variant,
    platform: str,
    brought: Brought,
    pinned: Mapping[str, tuple[LockedFile, ...]],
    env: Mapping[str, str],
) -> LockedPlatform:
    """Pin everything that one platform's image is made from; `unresolved` gives the reason for what cannot be pinned.

    Raises InputError or FetchError for a failure that the stack does not allow for (`elsewhere`, `unresolved`).
    """
    target = resolve.environment(variant.python, platform, variant.base)
    place = ResolveTarget(variant, platform, target, default_store(env), env)
    unresolved: dict[str, str] = {}
    log(f"{variant.id}: resolving Python distributions for {platform}")
    wheels, build, tools = _wheels(place, unresolved)
    return LockedPlatform(
        layers=split(variant, wheels),
        build=build,
        tools=tools,
        base=_base(place, unresolved),
        sources=tuple(_sources(place, unresolved)),
        supplied=dict(_supplied(place, brought, pinned, unresolved)),
        unresolved=unresolved,
    )


def split(variant: Variant, wheels: Sequence[LockedWheel]) -> dict[str, tuple[LockedWheel, ...]]:
    """Assign wheels to the variant's layers: to the layer that names them, otherwise to the one that names none."""
    named = {name: layer.name for layer in variant.layers for name in layer.distributions}
    rest = next((layer.name for layer in variant.layers if not layer.distributions), "")
    absent = sorted(set(named) - {wheel.name for wheel in wheels}) if wheels else []
    if absent:
        log(f"{variant.id}: a layer names distributions that are not required: {', '.join(absent)}")
    return {
        layer.name: tuple(wheel for wheel in wheels if named.get(wheel.name, rest) == layer.name)
        for layer in variant.layers
    }


# --- wheels ---------------------------------------------------------------------------------------------------------


def _wheels(place: ResolveTarget, unresolved: dict[str, str]) -> tuple[tuple[LockedWheel, ...], ...]:
    """Return the wheels of the image, those needed to compile, and the build tools."""
    variant = place.variant
    request = ResolveRequest(
        requirements=variant.requirements,
        overrides=tuple(override.requirement for override in variant.overrides),
        exclude=tuple(exclusion.name for exclusion in variant.exclude),
        public=variant.indexes,
    )
    own = resolve.named(variant.indexes, variant.build_requirements)
    build = ResolveRequest(variant.build_requirements, public=own)
    requests = (request, build, tool_request())
    try:
        return tuple(_resolved(place, each) if each.requirements else () for each in requests)
    except InputError:
        if not variant.elsewhere:
            raise
        unresolved["wheels"] = _published(variant)
        return (), (), _tools(place, unresolved)


def _tools(place: ResolveTarget, unresolved: dict[str, str]) -> tuple[LockedWheel, ...]:
    if place.target.machine in UV_MACHINES:
        return _resolved(place, tool_request())
    unresolved["tools"] = f"uv resolves for {' and '.join(UV_MACHINES)} only"
    return ()


def tool_request() -> ResolveRequest:
    """Return the request for the build tools: the version of uv that runs here."""
    return ResolveRequest((f"uv=={importlib.metadata.version('uv')}",))


def _resolved(place: ResolveTarget, request: ResolveRequest) -> tuple[LockedWheel, ...]:
    return resolve.resolve_wheels(request, place.target, place.store, place.env)


def _published(variant: Variant) -> str:
    """Return where the packages are published that no index of this machine has."""
    where = "; ".join(f"{', '.join(item.packages)}: {item.published}" for item in variant.elsewhere)
    return f"the machine that locked reached no index with all of it ({where})"


# --- base -----------------------------------------------------------------------------------------------------------


def _base(place: ResolveTarget, unresolved: dict[str, str]) -> LockedDebianBase | LockedImageBase:
    base = place.variant.base
    if isinstance(base, DebianBase):
        return _debian(place, base, unresolved)
    found = images.resolve_image(base)
    if found.digest is None:
        unresolved["base"] = base.unresolved or "the machine that locked did not reach its registry"
    return found


def _debian(place: ResolveTarget, wanted: DebianBase, unresolved: dict[str, str]) -> LockedDebianBase:
    suite, platform, store, env = wanted.suite, place.platform, place.store, place.env
    log(f"{place.variant.id}: resolving Debian packages of {suite} for {platform}")
    base = LockedDebianBase(
        kind="debian",
        suite=suite,
        snapshot=dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ"),
        digest=None,
        packages=debs.resolve_packages(suite, wanted.packages, platform, env),
        bootstrap=debs.resolve_packages(suite, BOOTSTRAP, platform, env),
    )
    if not resolve.native(platform):
        unresolved["base"] = f"its packages are pinned, its digest needs a {platform} machine to make it once"
        return base
    debs.fetch_packages((*base.packages, *base.bootstrap), base.snapshot, store, env)
    layout = rootfs.make(fetch.rootfs_packages(base, platform, place.variant.epoch), store, to_record=True)
    return base.model_copy(update={"digest": oci.read_digest(layout)})


# --- sources and supplied files -------------------------------------------------------------------------------------


def _sources(place: ResolveTarget, unresolved: dict[str, str]) -> Iterator[LockedSource]:
    for source in place.variant.sources:
        try:
            yield sources.resolve_source(source, place.target, place.store, place.env)
        except DrydockError as error:
            if not isinstance(error, (FetchError, InputError)) or not source.unresolved:
                raise
            unresolved[source.name] = source.unresolved
            yield LockedSource(name=source.name, repository=source.repository, source=source.source)


def _supplied(
    place: ResolveTarget, brought: Brought, pinned: Mapping[str, tuple[LockedFile, ...]], unresolved: dict[str, str]
) -> Iterator[tuple[str, tuple[LockedFile, ...]]]:
    for item in place.variant.supplied:
        if item.name in brought:
            yield item.name, supplied.take(item, brought[item.name], place.store)
        elif item.name in pinned:
            yield item.name, pinned[item.name]
        else:
            unresolved[item.name] = f"only an operator has {', '.join(item.patterns)}: {item.how}"
