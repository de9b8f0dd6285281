"""Turns a lock into build contexts for BuildKit: fetches every pinned file into the store and checks its hash. IO.

A file in the store is not fetched again, so a second run needs no network.
"""

from __future__ import annotations

import hashlib
import os
import platform as host
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from drydock.config import mirrors
from drydock.core.errors import FetchError, UnresolvedError
from drydock.core.files import format_json, join_below
from drydock.core.project import Project
from drydock.engine import daemon
from drydock.inputs import image_digests, rootfs, sources, supplied
from drydock.inputs.debs import fetch_packages
from drydock.inputs.store import Store, default_store
from drydock.inputs.uv import Environment
from drydock.inputs.wheels import fetch_wheels, find_image_environment
from drydock.model.locked import (
    Lock,
    LockedDeb,
    LockedDebianBase,
    LockedImageBase,
    LockedPlatform,
    LockedSource,
    LockedWheel,
)
from drydock.model.variant import Supplied, Variant
from drydock.oci import image_layout

MEGABYTE = 1_000_000
SHOWN = 5
"""Missing inputs that an error names: the largest ones. A variant has hundreds."""


def fetch_inputs(  # noqa: PLR0913 - most have defaults
    project: Project,
    variant: Variant,
    lock: Lock,
    platform: str,
    *,
    offline: bool = False,
    without: Collection[str] = (),
    with_programs: bool = True,
    env: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Fetch everything that a lock pins for a platform into the store; return the build contexts by name.

    They are base, wheels, tools, and one for each source and each context of supplied files. Those in `without` are
    left out because the user replaces them. Without `with_programs`, tools has only drydock's scripts. With `offline`,
    uses no network, and raises a FetchError that lists what the store lacks.
    """
    pins, store = lock.platforms[platform], default_store(env)
    refuse_unresolved(variant, pins, without)
    target = find_image_environment(variant.python, platform, variant.base)
    needed = select_needed_inputs(lock, platform, store, without=without, with_programs=with_programs)
    if offline:
        _refuse_missing(list_missing_inputs(needed, store), f"`./inv fetch --target {variant.id}`")
        if needed.debs:  # the root file system is made in a container
            daemon.ensure_engine(install=False)
    if isinstance(pins.base, LockedDebianBase):
        fetch_packages(needed.debs, pins.base.snapshot, store, env)
    fetch_wheels(needed.wheels, target, store, env, variant.indexes)
    layers = {**pins.layers, "build": pins.build} if pins.build else pins.layers
    makers: dict[str, Callable[[], Path | str]] = {
        "base": lambda: _make_base_context(pins, platform, lock.source_date_epoch, store, env),
        "wheels": lambda: wheel_folder(layers, store, variant.trims),
        "tools": lambda: tool_folder(pins.tools if with_programs else (), project, store),
        **{source.name: partial(sources.make_source_folder, source, target, store, env) for source in pins.sources},
        **{item.name: partial(_make_supplied_context, item, pins, store, env) for item in variant.supplied},
    }
    return {name: str(make()) for name, make in makers.items() if name not in without}


class NeededInputs(NamedTuple):
    """What a build reads from the store, of what a lock pins."""

    wheels: tuple[LockedWheel, ...]
    """Also the programs of the build."""
    debs: tuple[LockedDeb, ...]
    """From which the base is made; none if it is made."""
    sources: tuple[LockedSource, ...]


def select_needed_inputs(
    lock: Lock, platform: str, store: Store, *, without: Collection[str] = (), with_programs: bool = True
) -> NeededInputs:
    """Return what a build reads, except for the contexts `without`."""
    pins = lock.platforms[platform]
    return NeededInputs(
        (*(_all_wheels(pins) if "wheels" not in without else ()), *(pins.tools if with_programs else ())),
        _needed_debs(pins, platform, lock.source_date_epoch, store) if "base" not in without else (),
        tuple(source for source in pins.sources if source.name not in without),
    )


def list_missing_inputs(needed: NeededInputs, store: Store) -> tuple[tuple[str, int], ...]:
    """Return name and size of what the store lacks; the size of code in git repositories is not known: 0."""
    sdists = [source.sdist for source in needed.sources if source.sdist]
    code = [source for source in needed.sources if not source.sdist]
    return (*_find_missing_files((*needed.wheels, *sdists, *needed.debs), store), *_missing_code(code, store))


def _all_wheels(pins: LockedPlatform) -> tuple[LockedWheel, ...]:
    return (*(wheel for layer in pins.layers.values() for wheel in layer), *pins.build)


def _make_supplied_context(item: Supplied, pins: LockedPlatform, store: Store, env: Mapping[str, str]) -> Path:
    return supplied.make_context_folder(item, pins.supplied.get(item.name, ()), store, env)


def refuse_unresolved(variant: Variant, pins: LockedPlatform, without: Collection[str]) -> None:
    """Raise UnresolvedError if the lock has no pin for a context."""
    missing = {name: reason for name, reason in pins.unresolved.items() if name not in without}
    if missing:
        raise UnresolvedError(
            *(f"images/{variant.id}/lock.json: {name} is unresolved: {reason}" for name, reason in missing.items()),
            hint=f"run `./inv lock --target {variant.id}` where the servers can be reached, and commit the lock; or"
            f" replace the context with --context {min(missing)}=VALUE",
        )


def fetch_native_wheels(
    wheels: Sequence[LockedWheel], *, offline: bool = False, env: Mapping[str, str] = os.environ
) -> None:
    """Fetch wheels for this machine's own Python into the store."""
    store = default_store(env)
    if offline:
        _refuse_missing(tuple(_find_missing_files(wheels, store)), "the same command")
    major, minor, _ = host.python_version_tuple()
    target = Environment(f"{major}.{minor}", host.machine(), int(host.libc_ver()[1].split(".")[1]))
    fetch_wheels(wheels, target, store, env)


def wheel_folder(
    layers: Mapping[str, Sequence[LockedWheel]], store: Store, trims: Mapping[str, object] = MappingProxyType({})
) -> Path:
    """Return a folder with a folder for each layer: its wheels, requirements.txt, and trims.json if it has trims."""
    files = {f"{layer}/{wheel.filename}": wheel.sha256 for layer, wheels in layers.items() for wheel in wheels}
    lists = {
        f"{layer}/requirements.txt": "".join(sorted(map(_format_requirement, wheels))).encode()
        for layer, wheels in layers.items()
    }
    lists |= {f"{layer}/trims.json": format_json(trim).encode() for layer, trim in trims.items()}
    return store.folder(files, lists)


def tool_folder(tools: Sequence[LockedWheel], project: Project, store: Store) -> Path:
    """Return a folder of build tools: the executable from each tool's wheel, and the scripts of templates/tools."""
    programs = {tool.name: _store_program(tool, store) for tool in tools}
    return store.folder(programs, project.tools, executable=frozenset(programs))


def rootfs_packages(base: LockedDebianBase, platform: str, epoch: int) -> rootfs.Packages:
    """Return the packages from which a locked base is made."""
    return rootfs.Packages(base.suite, platform, epoch, base.packages, base.bootstrap)


def _format_requirement(wheel: LockedWheel) -> str:
    return f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n"


def _store_program(tool: LockedWheel, store: Store) -> str:
    """Add the executable from a tool's wheel to the store; return its sha256."""
    store.verify(tool.sha256)
    with zipfile.ZipFile(store.path(tool.sha256)) as wheel:
        data = wheel.read(f"{tool.name}-{tool.version}.data/scripts/{tool.name}")
    sha256 = hashlib.sha256(data).hexdigest()
    store.add([data], sha256, tool.filename)
    return sha256


def _make_base_context(pins: LockedPlatform, platform: str, epoch: int, store: Store, env: Mapping[str, str]) -> str:
    if isinstance(pins.base, LockedImageBase):
        return _make_image_context(pins.base, platform, store, env)
    source = rootfs_packages(pins.base, platform, epoch)
    layout = rootfs.make_base(source, store)
    digest = pins.base.digest or image_layout.read_digest(layout)
    rootfs.check_digest(layout, digest, source)
    return f"oci-layout://{layout}@{digest}"


def restore_base(pins: LockedPlatform, platform: str, epoch: int, image: Path) -> None:
    """Make a Debian base that the store lacks out of an image that stands on it, if the result is the locked base."""
    if isinstance(pins.base, LockedDebianBase) and pins.base.digest:
        rootfs.restore_base_layout(
            rootfs_packages(pins.base, platform, epoch), default_store(), pins.base.digest, image
        )


def _make_image_context(base: LockedImageBase, platform: str, store: Store, env: Mapping[str, str]) -> str:
    """Return the build context of an image base: its layout in the store, from a bundle, else its registry or a mirror.

    Raises FetchError without a pinned digest: a tag names another image every day.
    """
    if not base.digest:
        raise UnresolvedError(f"{base.reference}: the base has no pinned digest")
    if image_layout.is_intact_layout(image_folder(base.digest, platform, store)):
        return f"oci-layout://{image_folder(base.digest, platform, store)}@{base.digest}"
    reference = image_digests.at_mirror(base.reference, mirrors.read_mirrors(env))
    return f"docker-image://{reference}@{base.digest}"


def image_folder(digest: str, platform: str, store: Store) -> Path:
    """Return the path for the OCI layout of an image base for one platform; it need not exist."""
    images_of = store.home / "store" / "images" / platform.replace("/", "-")
    return join_below(images_of, digest.removeprefix("sha256:"))


def _needed_debs(pins: LockedPlatform, platform: str, epoch: int, store: Store) -> tuple[LockedDeb, ...]:
    """Return the packages needed to make the base; none if it is already made."""
    if not isinstance(pins.base, LockedDebianBase):
        return ()
    source = rootfs_packages(pins.base, platform, epoch)
    is_made = image_layout.is_intact_layout(rootfs.base_folder(source, store))
    return () if is_made else (*source.packages, *source.bootstrap)


def _find_missing_files(pinned: Sequence[LockedWheel | LockedDeb], store: Store) -> Iterator[tuple[str, int]]:
    """Yield name and size of the files that the store lacks, each once."""
    for item in {item.sha256: item for item in pinned}.values():
        if not store.has(item.sha256, item.size):
            yield f"{item.filename.rpartition('/')[2]} ({_format_size(item.size)})", item.size


def _missing_code(pinned: Sequence[LockedSource], store: Store) -> Iterator[tuple[str, int]]:
    """Yield name and commit of the source code that the store lacks; its size is not known."""
    for source in pinned:
        if not sources.is_source_stored(source, store):
            yield f"{source.name} {source.url or source.repository}@{source.pin}", 0


def _refuse_missing(missing: Sequence[tuple[str, int]], command: str) -> None:
    """Raise FetchError that names what the store lacks, if it lacks anything."""
    if not missing:
        return
    size, rest = _format_size(sum(size for _, size in missing)), len(missing) - SHOWN
    raise FetchError(
        f"not in the store: {len(missing)} pinned {'inputs' if len(missing) > 1 else 'input'} ({size})",
        *(f"  {name}" for name, _ in sorted(missing, key=lambda item: (-item[1], item[0]))[:SHOWN]),
        *([f"  and {rest} more"] if rest > 0 else []),
        hint=f"run {command} once with a network",
    )


def _format_size(size: int) -> str:
    return f"{size / MEGABYTE:.1f} MB" if size >= MEGABYTE else f"{size / 1000:.1f} kB"
