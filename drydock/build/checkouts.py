"""What each checkout keeps of its builds: their layouts, and their images in the engine. IO.

One file for each checkout, in the cache folder that checkouts share, because an image must not depend on the path of
its checkout. A build removes what its own checkout kept before, unless another checkout keeps it too. A checkout that
no longer exists keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from drydock.core.files import checksum, dumps, exclusive, parse_json, write_atomically
from drydock.core.paths import cache_home

Removed = Callable[[str], bool]
"""Removes an image from the engine, and tells whether it is gone."""


def keep(root: Path, repository: str, platform: str, names: Mapping[str, str], remove: Removed | None = None) -> None:
    """Note what a checkout keeps of a build, by kind: `image`, and paths in the cache folder, `layout`, `foundation`.

    With `remove`, its older images of that build are removed, unless another checkout keeps them; those that cannot be,
    as a container uses them, are tried again after the next build.
    """
    with exclusive(_folder() / "lock"):
        known = _read(_file(root)).get("builds", {})
        old = known.get(repository, {}).get(platform, {})
        new = {**old, **names}
        builds = {**known, repository: {**known.get(repository, {}), platform: new}}
        _write(root, builds)
        if remove:
            older = {*old.get("older", ()), old.get("image", "")} - {"", *named()}
            new["older"] = sorted(name for name in older if not remove(name))
            _write(root, builds)


def image(root: Path, repository: str, platform: str) -> str:
    """Return the newest image in the engine that a checkout has built, for this platform if it can; empty if none."""
    builds = _read(_file(root)).get("builds", {}).get(repository, {})
    return next((each["image"] for each in (builds.get(platform, {}), *builds.values()) if each.get("image")), "")


def named() -> dict[str, list[str]]:
    """Return what the checkouts keep, and the paths of those that do."""
    found: dict[str, list[str]] = {}
    for checkout, builds in _living():
        for build in (build for platforms in builds.values() for build in platforms.values()):
            for name in (str(value) for kind, value in build.items() if kind != "older"):
                found.setdefault(name, []).append(checkout)
    return found


def _living() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(_folder().glob("*.json")):
        noted = _read(file)
        if Path(noted["checkout"]).is_dir():
            yield noted["checkout"], noted["builds"]


def _folder() -> Path:
    return cache_home() / "checkouts"


def _file(root: Path) -> Path:
    return _folder() / f"{checksum(str(root.resolve()))[:16]}.json"


def _read(file: Path) -> dict[str, Any]:
    return parse_json(file.read_bytes(), str(file)) if file.is_file() else {}


def _write(root: Path, builds: Mapping[str, Any]) -> None:
    write_atomically(_file(root), dumps({"checkout": str(root.resolve()), "builds": builds}))
