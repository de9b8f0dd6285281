"""Compares two locks: packages added, removed and changed, with versions and sizes.

IO: reads the locks, from the working tree or out of git. Comparing and printing are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.config.matrix import find_variant, read_matrix
from drydock.core.differences import find_differences
from drydock.core.errors import FetchError, InputError
from drydock.core.project import Project
from drydock.lock.lockfile import parse_lock, path_of_lock, read_lock
from drydock.model.locked import Lock, LockedDebianBase, LockedPlatform


class Pin(NamedTuple):
    """One package of a lock."""

    version: str
    size: int
    sha256: str


class PackageDifference(NamedTuple):
    """A package that differs; None: it is not in that lock."""

    platform: str
    kind: str
    """wheel, build, tool, sdist, deb or bootstrap."""
    name: str
    old: Pin | None
    new: Pin | None


Key = tuple[str, str, str]


def dump_lock_diff(old: Lock, new: Lock) -> dict[str, Any]:
    """Return what differs between two locks as plain JSON values."""
    return {
        "packages": [*map(_dump_package_change, compare_packages(old, new))],
        "other": compare_other_fields(old, new),
    }


def describe_changes(old: Lock | None, new: Lock) -> str:
    """Return what a new lock changes, as text; without an old one, how much it pins."""
    if old is None:
        return f"new: {sum(1 for _ in _list_package_pins(new))} packages\n"
    fields = {key: pair for key, pair in compare_other_fields(old, new).items() if key != "inputs_sha256"}
    return format_lock_diff(compare_packages(old, new), fields)


def format_additions(parent: Lock, new: Lock) -> str:
    """Return as text what a row's first lock pins otherwise than the lock of the row that it stands on.

    What a first lock always has of its own, such as its row's name, is left out.
    """
    platforms = {name: pins for name, pins in parent.platforms.items() if name in new.platforms}
    of_parent = parent.model_copy(update={"platforms": platforms})
    inputs = {key: pair for key, pair in compare_other_fields(of_parent, new).items() if _INPUT.search(key)}
    text = format_lock_diff(compare_packages(of_parent, new), inputs)
    return (
        f"new: as {parent.variant}\n" if text == format_lock_diff((), {}) else f"new against {parent.variant}:\n{text}"
    )


_INPUT = re.compile(r"\.(base\.digest$|sources\.|supplied\.|unresolved\.)")
"""Of `other`: what an image is made of, other than packages."""


def is_same(old: Lock, new: Lock) -> bool:
    """Return whether two locks have the same pins, made from the same inputs."""
    return not (compare_packages(old, new) or compare_other_fields(old, new))


def load_named_lock(project: Project, name: str) -> Lock:
    """Read a lock by target, file or REVISION:TARGET. Raises TargetError, InputError or StaleError."""
    if path_of_lock(project, name).is_file():
        return read_lock(path_of_lock(project, name))
    if Path(name).is_file():
        return read_lock(Path(name))
    revision, colon, target = name.rpartition(":")
    if not colon:
        return read_lock(path_of_lock(project, find_variant(read_matrix(project), target).id))
    matching_ids = (variant.id for variant in read_matrix(project) if variant.answers_to(target))
    return parse_lock(
        _show_committed_lock(project, revision, next(matching_ids, target)), name
    )  # a variant of old revisions is its own name


def compare_packages(old: Lock, new: Lock) -> tuple[PackageDifference, ...]:
    """Return the packages that differ, sorted."""
    changed_pins = find_differences(dict(_list_package_pins(old)), dict(_list_package_pins(new)))
    return tuple(PackageDifference(*key, before, after) for key, before, after in sorted(changed_pins))


def compare_other_fields(old: Lock, new: Lock) -> dict[str, list[Any]]:
    """Return every other field that differs: its key path → the old and the new value."""
    return {
        key: [before, after]
        for key, before, after in sorted(find_differences(_flatten_lock_fields(old), _flatten_lock_fields(new)))
    }


def _show_committed_lock(project: Project, revision: str, variant: str) -> str:
    """Read a committed lock out of git."""
    from drydock.inputs import git  # noqa: PLC0415 - what only compares locks speaks to no server

    place = f"{revision}:images/{variant}/lock.json"
    try:
        return git.in_checkout(project.root, "show", "--end-of-options", place)
    except FetchError as error:
        raise InputError(f"{place}: not found in git: {error.problems[0]}") from error


def _list_package_pins(lock: Lock) -> Iterator[tuple[Key, Pin]]:
    for platform, pins in lock.platforms.items():
        for kind, packages in _group_packages_by_kind(pins).items():
            for package in packages:
                yield (platform, kind, package.name), Pin(package.version, package.size, package.sha256)


def _group_packages_by_kind(pins: LockedPlatform) -> Mapping[str, tuple[Any, ...]]:
    python: dict[str, tuple[Any, ...]] = {
        "wheel": tuple(wheel for layer in pins.layers.values() for wheel in layer),
        "tool": pins.tools,
    }
    python |= {"build": pins.build, "sdist": tuple(source.sdist for source in pins.sources if source.sdist)}
    if isinstance(pins.base, LockedDebianBase):
        return {**python, "deb": pins.base.packages, "bootstrap": pins.base.bootstrap}
    return python


def _flatten_lock_fields(lock: Lock) -> dict[str, Any]:
    facts: dict[str, Any] = {"variant": lock.variant, "inputs_sha256": lock.inputs_sha256}
    facts |= {"source_date_epoch": lock.source_date_epoch, "compatibility_version": lock.compatibility_version}
    for platform, pins in lock.platforms.items():
        facts[f"platforms.{platform}.base.digest"] = pins.base.digest
        for source in pins.sources:
            facts[f"platforms.{platform}.sources.{source.name}"] = source.commit or source.sha256
        for context, files in pins.supplied.items():
            facts |= {f"platforms.{platform}.supplied.{context}.{file.filename}": file.sha256 for file in files}
        for context, reason in pins.unresolved.items():
            facts[f"platforms.{platform}.unresolved.{context}"] = reason
        for layer, wheels in pins.layers.items():
            facts[f"platforms.{platform}.layers.{layer}"] = sorted(wheel.name for wheel in wheels)
    return facts


def _dump_package_change(difference: PackageDifference) -> dict[str, Any]:
    old, new = difference.old, difference.new
    change = "added" if old is None else "removed" if new is None else "changed"
    return {
        "change": change,
        "platform": difference.platform,
        "kind": difference.kind,
        "name": difference.name,
        "old": old._asdict() if old else None,
        "new": new._asdict() if new else None,
    }


def format_lock_diff(packages: tuple[PackageDifference, ...], fields: Mapping[str, list[Any]]) -> str:
    """Return the differences of two locks as text."""
    lines = [_format_package_change(difference) for difference in packages]
    lines += [
        f"{key}: {_shorten_field_value(before)} → {_shorten_field_value(after)}"
        for key, (before, after) in fields.items()
    ]
    return "".join(f"{line}\n" for line in lines) or "no differences\n"


def _format_package_change(difference: PackageDifference) -> str:
    old, new, where = difference.old, difference.new, f"({difference.kind}, {difference.platform})"
    if old is None and new is not None:
        return f"+ {difference.name} {new.version} {_format_megabytes(new.size)} {where}"
    if new is None and old is not None:
        return f"- {difference.name} {old.version} {_format_megabytes(old.size)} {where}"
    if old is None or new is None:
        raise ValueError(difference)
    versions = f"{old.version} → {new.version}" if old.version != new.version else f"{new.version}, different file"
    return f"~ {difference.name} {versions} {_format_megabytes(old.size)} → {_format_megabytes(new.size)} {where}"


def _format_megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _shorten_field_value(value: Any) -> str:
    return f"{len(value)} distributions" if isinstance(value, list) else str(value)
