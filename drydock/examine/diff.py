"""REF REF → what changed between two images: packages, files, sizes, flags. The comparison is pure; reading is IO."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from drydock.attest.contents import File, ImageContents, read_contents
from drydock.core.errors import InputError
from drydock.examine.pulled import Image, open_image
from drydock.model.record import Record

PROFILE = "opt/drydock/profile.json"
"""Where an image keeps what its entrypoint decides by."""
SHOWN = 20
"""Changed files that people are shown; --json has them all."""


class ImageChange(NamedTuple):
    """One thing that is not the same in both; empty where it is in one only."""

    name: str
    old: str
    new: str


class ImageDiff(Record):
    """What `diff --json` prints."""

    old: str
    new: str
    platform: str
    same: bool
    packages: tuple[ImageChange, ...]
    flags: tuple[ImageChange, ...]
    """vLLM's flags and environment that the image sets, by name."""
    config: tuple[ImageChange, ...]
    """User, entrypoint, environment, labels of the image itself."""
    files: tuple[ImageChange, ...]
    """Files that no changed package accounts for, by sha256 or link."""
    files_of_packages: int
    """Number of changed files that changed packages account for."""
    sizes: Mapping[str, tuple[int, int]]
    """Bytes: of the layers as they travel, and of the files in them."""


class Side(NamedTuple):
    """One of two images."""

    digest: str
    contents: ImageContents
    config: Mapping[str, Any]
    compressed: int


def diff(old: str, new: str, *, platform: str = "", insecure: bool = False) -> ImageDiff:
    """Return what changed. Raises InputError where the two have no platform in common, and what reading raises."""
    images = [open_image(reference, insecure=insecure) for reference in (old, new)]
    chosen = _platform(images, platform)
    return compare(chosen, *(_side(image, chosen) for image in images))


def compare(platform: str, old: Side, new: Side) -> ImageDiff:
    """Return what changed between two images. Pure."""
    packages = _changes(_packages(old.contents), _packages(new.contents))
    owners = {change.name for change in packages}
    files = _changes(*({path: _content(file) for path, file in side.contents.files.items()} for side in (old, new)))
    loose = [change for change in files if not _owner(change.name, old, new) & owners]
    sizes = {"compressed": (old.compressed, new.compressed), "files": (_size(old.contents), _size(new.contents))}
    return ImageDiff(
        old=old.digest,
        new=new.digest,
        platform=platform,
        same=old.digest == new.digest,
        packages=packages,
        flags=_changes(*(_flags(side.contents) for side in (old, new))),
        config=_changes(*({key: json.dumps(value) for key, value in side.config.items()} for side in (old, new))),
        files=tuple(loose),
        files_of_packages=len(files) - len(loose),
        sizes=sizes,
    )


def report(found: ImageDiff) -> str:
    """Return what people read."""
    if found.same:
        return f"the same: {found.old}\n"
    lines = [f"{found.old} → {found.new} ({found.platform})"]
    for title, changes in (("packages", found.packages), ("flags", found.flags), ("config", found.config)):
        lines += [f"{title}:", *map(_line, changes)] if changes else []
    if found.files or found.files_of_packages:
        lines.append(f"files: {found.files_of_packages} of the packages above, {len(found.files)} others")
        lines += [_line(change) for change in found.files[:SHOWN]]
    lines += [f"{name}: {old / 1e6:.1f} → {new / 1e6:.1f} MB" for name, (old, new) in found.sizes.items()]
    return "\n".join(lines) + "\n"


def _platform(images: Iterable[Image], asked: str) -> str:
    first, second = (set(image.platforms) for image in images)
    common = sorted(first & second)
    if not common or (asked and asked not in common):
        raise InputError(f"{asked or 'no platform'}: the two have {', '.join(common) or 'none'} in common")
    return asked or common[0]


def _side(image: Image, platform: str) -> Side:
    manifest = image.platforms[platform]
    content = manifest.content
    config = image.config(platform).get("config", {})
    compressed = sum(int(layer["size"]) for layer in content["layers"])
    return Side(manifest.digest, read_contents(content, image.blob), config, compressed)


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[ImageChange, ...]:
    names = sorted({*old, *new})
    changes = (ImageChange(name, old.get(name, ""), new.get(name, "")) for name in names)
    return tuple(change for change in changes if change.old != change.new)


def _packages(contents: ImageContents) -> dict[str, str]:
    return {package.owner: package.version for package in contents.packages if not package.within}


def _flags(contents: ImageContents) -> dict[str, str]:
    profile = json.loads(contents.texts.get(PROFILE, "{}"))
    return {str(item["setting"]): json.dumps(item["value"]) for item in profile.get("settings", ())}


def _content(file: File) -> str:
    return f"{file.sha256 or file.link} {file.mode:o}"


def _owner(path: str, *sides: Side) -> set[str]:
    return {side.contents.owners.get(path, "") for side in sides}


def _size(contents: ImageContents) -> int:
    return sum(file.size for file in contents.files.values())


def _line(change: ImageChange) -> str:
    return f"  {change.name}: {_short(change.old) or 'absent'} → {_short(change.new) or 'absent'}"


def _short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}…"  # noqa: PLR2004 - what fits beside its twin
