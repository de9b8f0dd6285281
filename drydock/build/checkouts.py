"""What each checkout keeps of its builds: their layouts, and their images in the engine. IO.

One file for each checkout, in the cache folder that checkouts share, because an image must not depend on the path of
its checkout. A build removes what its own checkout kept before, unless another checkout keeps it too. A checkout that
no longer exists keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from drydock.core.files import compute_checksum, format_json, hold_lock_file, parse_json_object, write_atomically
from drydock.core.paths import cache_home

Removed = Callable[[str], bool]
"""Removes an image from the engine, and tells whether it is gone."""


def keep_build(
    root: Path, repository: str, platform: str, names: Mapping[str, str], remove: Removed | None = None
) -> None:
    """Note what a checkout keeps of a build, by kind: `image`, and paths in the cache folder, `layout`, `foundation`.

    With `remove`, its older images of that build are removed, unless another checkout keeps them; those that cannot be,
    as a container uses them, are tried again after the next build.
    """
    with hold_lock_file(_records_folder() / "lock"):
        noted_builds = _read_checkout(_record_path(root)).get("builds", {})
        old = noted_builds.get(repository, {}).get(platform, {})
        new = {**old, **names}
        builds = {**noted_builds, repository: {**noted_builds.get(repository, {}), platform: new}}
        _write_checkout(root, builds)
        if remove:
            older = {*old.get("older", ()), old.get("image", "")} - {"", *list_kept_names()}
            new["older"] = sorted(name for name in older if not remove(name))
            _write_checkout(root, builds)


def find_newest_image(root: Path, repository: str, platform: str) -> str:
    """Return the newest image in the engine that a checkout has built, for this platform if it can; empty if none."""
    builds = _read_checkout(_record_path(root)).get("builds", {}).get(repository, {})
    return next((build["image"] for build in (builds.get(platform, {}), *builds.values()) if build.get("image")), "")


def list_kept_names() -> dict[str, list[str]]:
    """Return what the checkouts keep, and the paths of those that do."""
    checkouts_by_name: dict[str, list[str]] = {}
    for checkout, builds in _read_living_checkouts():
        for build in (build for platforms in builds.values() for build in platforms.values()):
            for name in (str(value) for kind, value in build.items() if kind != "older"):
                checkouts_by_name.setdefault(name, []).append(checkout)
    return checkouts_by_name


def _read_living_checkouts() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(_records_folder().glob("*.json")):
        noted = _read_checkout(file)
        if Path(noted["checkout"]).is_dir():
            yield noted["checkout"], noted["builds"]


def _records_folder() -> Path:
    return cache_home() / "checkouts"


def _record_path(root: Path) -> Path:
    return _records_folder() / f"{compute_checksum(str(root.resolve()))[:16]}.json"


def _read_checkout(file: Path) -> dict[str, Any]:
    return parse_json_object(file.read_bytes(), str(file)) if file.is_file() else {}


def _write_checkout(root: Path, builds: Mapping[str, Any]) -> None:
    write_atomically(_record_path(root), format_json({"checkout": str(root.resolve()), "builds": builds}))
