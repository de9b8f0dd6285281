"""Pins one platform of a variant: exact wheels, packages, commits and digests, or why one is unresolved. IO."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from drydock.core.console import log
from drydock.core.errors import DrydockError, FetchError, IndexFailedError, InputError
from drydock.inputs import debs, fetch, image_digests, rootfs, sources, supplied, wheels
from drydock.inputs.store import Store, default_store
from drydock.inputs.uv import UV_MACHINES, Environment, ResolveRequest
from drydock.lock import upgrade_policy
from drydock.lock.lockfile import assign_wheels_to_layers
from drydock.lock.upgrade_policy import Kept
from drydock.model.bases import DebianBase
from drydock.model.locked import (
    LockedDebianBase,
    LockedFile,
    LockedImageBase,
    LockedPlatform,
    LockedSource,
    LockedWheel,
    SuppliedFolders,
)
from drydock.model.variant import Variant
from drydock.oci import image_layout

BOOTSTRAP = ("apt", "mmdebstrap")


class ResolveTarget(NamedTuple):
    """What to resolve for: variant, platform and interpreter; what to keep; and the store and environment to use."""

    variant: Variant
    platform: str
    target: Environment
    store: Store
    env: Mapping[str, str]
    kept: Kept

    def failed(self, context: str, error: DrydockError) -> None:
        """Log why a context stays unresolved; the lock has the reason that holds on every machine."""
        log(f"{self.variant.id}: {context} cannot be resolved here: {error}")


def resolve_platform(
    variant: Variant,
    platform: str,
    folders: SuppliedFolders,
    pinned: Mapping[str, tuple[LockedFile, ...]],
    env: Mapping[str, str],
    policy: Kept = Kept(),  # noqa: B008 - immutable
) -> LockedPlatform:
    """Pin everything that one platform's image is made from; `unresolved` gives the reason for what cannot be pinned.

    What `policy` says stays is neither looked up nor changed. Raises InputError or FetchError for a failure that the
    stack does not allow for (`elsewhere`, `unresolved`).
    """
    target = wheels.find_image_environment(variant.python, platform, variant.base)
    place = ResolveTarget(variant, platform, target, default_store(env), env, policy)
    unresolved: dict[str, str] = {}
    layers, build = _pin_wheels(place, unresolved)
    return LockedPlatform(
        layers=layers,
        build=build,
        tools=_pin_tools(place, unresolved),
        base=_pin_base(place, unresolved),
        sources=tuple(_pin_sources(place, unresolved)),
        supplied=dict(_pin_supplied_files(place, folders, pinned, unresolved)),
        unresolved=unresolved,
    )


# --- wheels ---------------------------------------------------------------------------------------------------------


Layers = Mapping[str, tuple[LockedWheel, ...]]


def _pin_wheels(place: ResolveTarget, unresolved: dict[str, str]) -> tuple[Layers, tuple[LockedWheel, ...]]:
    """Return the wheels of the image by layer, and those needed to compile."""
    variant, old = place.variant, place.kept.pins
    if old and (place.kept.keeps_wheels() or place.kept.leaves_open("wheels")):
        unresolved |= {name: reason for name, reason in old.unresolved.items() if name == "wheels"}
        return old.layers, old.build
    log(f"{variant.id}: resolving Python distributions for {place.platform}")
    policy = place.kept
    excluded, built = [item.name for item in variant.exclude], {item.distribution for item in variant.builds}
    request = ResolveRequest(
        requirements=variant.requirements,
        overrides=tuple(override.requirement for override in variant.overrides),
        exclude=tuple(name for name in excluded if name not in built),
        built=tuple(name for name in excluded if name in built),
        public=variant.indexes,
        prefer=policy.list_preferred(),
        layers=tuple(layer.distributions for layer in variant.layers),
    )
    build_indexes = wheels.select_named_indexes(variant.indexes, variant.build_requirements)
    build = ResolveRequest(
        variant.build_requirements, public=build_indexes, prefer=policy.list_preferred(building=True)
    )
    try:
        resolved_wheels = tuple(
            _resolve_kept_wheels(place, item) if item.requirements else () for item in (request, build)
        )
    except (InputError, IndexFailedError) as error:
        if not variant.elsewhere:
            raise
        place.failed("wheels", error)
        unresolved["wheels"] = _explain_unreached_index(variant)
        return assign_wheels_to_layers(variant, ()), ()
    return assign_wheels_to_layers(variant, resolved_wheels[0]), resolved_wheels[1]


def _pin_tools(place: ResolveTarget, unresolved: dict[str, str]) -> tuple[LockedWheel, ...]:
    if place.variant.is_adopted:  # nothing is built
        return ()
    if place.kept.kept_tools():
        return place.kept.kept_tools()
    if place.target.machine in UV_MACHINES:
        return _resolve_kept_wheels(place, tool_request())
    unresolved["tools"] = f"uv resolves for {' and '.join(UV_MACHINES)} only"
    return ()


def tool_request() -> ResolveRequest:
    """Return the request for the build tools: the version of uv that runs here."""
    return ResolveRequest((f"uv=={importlib.metadata.version('uv')}",))


def _resolve_kept_wheels(place: ResolveTarget, request: ResolveRequest) -> tuple[LockedWheel, ...]:
    return place.kept.keep_files(wheels.resolve_wheels(request, place.target, place.store, place.env), place.target)


def _explain_unreached_index(variant: Variant) -> str:
    """Return where the packages are published that no index of this machine has."""
    where = "; ".join(f"{', '.join(item.packages)}: {item.published}" for item in variant.elsewhere)
    return f"the machine that locked reached no index with all of it ({where})"


# --- base -----------------------------------------------------------------------------------------------------------


def _pin_base(place: ResolveTarget, unresolved: dict[str, str]) -> LockedDebianBase | LockedImageBase:
    base, old = place.variant.base, place.kept.pins
    if old and place.kept.leaves_open("base"):
        unresolved |= {name: reason for name, reason in old.unresolved.items() if name == "base"}
        return old.base
    if isinstance(base, DebianBase):
        return _pin_debian_base(place, base, unresolved)
    image = place.kept.kept_image(base) or image_digests.resolve_image(base, place.env)
    if image.digest is None:
        unresolved["base"] = base.unresolved or "the machine that locked did not reach its registry"
    return image


def _pin_debian_base(place: ResolveTarget, stack_base: DebianBase, unresolved: dict[str, str]) -> LockedDebianBase:
    old = place.kept.kept_debian(stack_base)
    base = old if old and place.kept.same else _newest_debian(place, stack_base, old)
    if base.digest:
        return base
    if not wheels.is_native_platform(place.platform):
        unresolved["base"] = f"its packages are pinned, its digest needs a {place.platform} machine to make it once"
        return base
    debs.fetch_packages((*base.packages, *base.bootstrap), base.snapshot, place.store, place.env)
    packages = fetch.rootfs_packages(base, place.platform, place.variant.epoch)
    layout = rootfs.make_base(packages, place.store, to_record=True)
    return base.model_copy(update={"digest": image_layout.read_digest(layout)})


def _newest_debian(place: ResolveTarget, stack_base: DebianBase, old: LockedDebianBase | None) -> LockedDebianBase:
    """Return a base without digest; with the packages of the older one, if they are the same in other versions."""
    log(f"{place.variant.id}: resolving Debian packages of {stack_base.suite} for {place.platform}")
    new_base = LockedDebianBase(
        kind="debian",
        suite=stack_base.suite,
        snapshot=dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ"),
        digest=None,
        packages=debs.resolve_packages(stack_base.suite, stack_base.packages, place.platform, place.env),
        bootstrap=debs.resolve_packages(stack_base.suite, BOOTSTRAP, place.platform, place.env),
    )
    if old is None:
        return new_base
    packages = (
        upgrade_policy.choose_debs(old.packages, new_base.packages),
        upgrade_policy.choose_debs(old.bootstrap, new_base.bootstrap),
    )
    if packages != (old.packages, old.bootstrap):
        return new_base.model_copy(update={"packages": packages[0], "bootstrap": packages[1]})
    return old if place.kept.epoch == place.variant.epoch else old.model_copy(update={"digest": None})


# --- sources and supplied files -------------------------------------------------------------------------------------


def _pin_sources(place: ResolveTarget, unresolved: dict[str, str]) -> Iterator[LockedSource]:
    for source in place.variant.sources:
        locked_source = place.kept.kept_source(source)
        try:
            yield locked_source or sources.resolve_source(source, place.target, place.store, place.env)
        except DrydockError as error:
            if not isinstance(error, (FetchError, InputError)) or not source.unresolved:
                raise
            place.failed(source.name, error)
            locked_source = LockedSource(name=source.name, repository=source.repository, source=source.source)
            yield locked_source
        if locked_source and not locked_source.pin:
            unresolved[source.name] = source.unresolved


def _pin_supplied_files(
    place: ResolveTarget,
    folders: SuppliedFolders,
    pinned: Mapping[str, tuple[LockedFile, ...]],
    unresolved: dict[str, str],
) -> Iterator[tuple[str, tuple[LockedFile, ...]]]:
    open_items = [item for item in place.variant.supplied if item.name not in pinned]
    folders = {**supplied.match_machine_folders(open_items, place.env), **folders}
    for item in place.variant.supplied:
        if item.name in folders:
            files = supplied.take_supplied(item, folders[item.name], place.store)
            supplied.check_pins(files, place.store)
            yield item.name, files
        elif item.name in pinned:
            yield item.name, pinned[item.name]
        else:
            unresolved[item.name] = f"only an operator has {', '.join(item.patterns)}: {item.how}"
