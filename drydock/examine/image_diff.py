"""Compare two images: packages, files, sizes, flags. The comparison is pure; reading the images is IO."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from drydock.attest.contents import ImageContents, read_contents
from drydock.core.console import as_lines
from drydock.core.differences import differences
from drydock.core.errors import InputError, UntrustedError
from drydock.core.files import parse_json
from drydock.examine.remote_image import Image, open_image
from drydock.model.record import Record

PROFILE = "opt/drydock/profile.json"
"""The image's settings for its entrypoint."""
SHOWN = 20
"""Number of changed files in the text report; --json has them all."""


class ImageChange(NamedTuple):
    """A difference between the two images."""

    name: str
    old: str
    """Empty if the old image does not have it."""
    new: str
    """Empty if the new image does not have it."""


class ImageDiff(Record):
    """What `diff --json` prints."""

    old: str
    new: str
    platform: str
    same: bool
    packages: tuple[ImageChange, ...]
    flags: tuple[ImageChange, ...]
    """vLLM flags and environment variables that the image sets."""
    config: tuple[ImageChange, ...]
    """The image's configuration: user, entrypoint, environment, labels."""
    files: tuple[ImageChange, ...]
    """Changed files that belong to no changed package, by sha256 or link target."""
    files_of_packages: int
    """Number of changed files that belong to changed packages."""
    sizes: Mapping[str, tuple[int, int]]
    """Size in bytes of the compressed layers, and of the files."""


class Side(NamedTuple):
    """One of two images."""

    digest: str
    contents: ImageContents
    config: Mapping[str, Any]
    compressed: int


def diff(old: str, new: str, *, platform: str = "", insecure: bool = False) -> ImageDiff:
    """Return the changes. Raises InputError if the images have no platform in common, and the errors of reading."""
    images = [open_image(reference, insecure=insecure) for reference in (old, new)]
    chosen = _platform(images, platform)
    return compare(chosen, *(_side(image, chosen) for image in images))


def compare(platform: str, old: Side, new: Side) -> ImageDiff:
    """Return the changes between two images. Pure."""
    packages = _changes(_packages(old.contents), _packages(new.contents))
    changed_packages = {change.name for change in packages}
    files = _changes(_files(old.contents), _files(new.contents))
    other_files = [change for change in files if not _owners(change.name, old, new) & changed_packages]
    sizes = {"compressed": (old.compressed, new.compressed), "files": (_size(old.contents), _size(new.contents))}
    return ImageDiff(
        old=old.digest,
        new=new.digest,
        platform=platform,
        same=old.digest == new.digest,
        packages=packages,
        flags=_changes(_flags(old.contents), _flags(new.contents)),
        config=_changes(_config(old), _config(new)),
        files=tuple(other_files),
        files_of_packages=len(files) - len(other_files),
        sizes=sizes,
    )


def report(found: ImageDiff) -> str:
    """Return the result as text."""
    if found.same:
        return f"the same: {found.old}\n"
    lines = [f"{found.old} → {found.new} ({found.platform})"]
    for title, changes in (("packages", found.packages), ("flags", found.flags), ("config", found.config)):
        lines += [f"{title}:", *map(_line, changes)] if changes else []
    if found.files or found.files_of_packages:
        lines.append(f"files: {found.files_of_packages} in the packages above, {len(found.files)} others")
        lines += [_line(change) for change in found.files[:SHOWN]]
    lines += [f"{name}: {old / 1e6:.1f} → {new / 1e6:.1f} MB" for name, (old, new) in found.sizes.items()]
    return as_lines(lines)


def _platform(images: Iterable[Image], requested: str) -> str:
    first, second = (set(image.platforms) for image in images)
    common = sorted(first & second)
    if not common:
        raise InputError("the two images have no platform in common")
    if requested and requested not in common:
        raise InputError(f"--platform {requested}: expected a platform of both images: {', '.join(common)}")
    return requested or common[0]


def _side(image: Image, platform: str) -> Side:
    manifest = image.platforms[platform]
    content = manifest.content
    config = image.config(platform)["config"]
    compressed = sum(int(layer["size"]) for layer in content["layers"])
    return Side(manifest.digest, read_contents(content, image.blob), config, compressed)


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[ImageChange, ...]:
    found = sorted(differences(old, new))
    return tuple(ImageChange(name, before or "", after or "") for name, before, after in found)


def _packages(contents: ImageContents) -> dict[str, str]:
    return {package.owner: package.version for package in contents.packages if not package.within}


def _flags(contents: ImageContents) -> dict[str, str]:
    profile = parse_json(contents.texts.get(PROFILE, "{}"), PROFILE, UntrustedError)
    return {str(item["setting"]): json.dumps(item["value"]) for item in profile.get("settings", ())}


def _config(side: Side) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in side.config.items()}


def _files(contents: ImageContents) -> dict[str, str]:
    return {path: f"{file.sha256 or file.link} {file.mode:o}" for path, file in contents.files.items()}


def _owners(path: str, *sides: Side) -> set[str]:
    return {side.contents.owners.get(path, "") for side in sides}


def _size(contents: ImageContents) -> int:
    return sum(file.size for file in contents.files.values())


def _line(change: ImageChange) -> str:
    return f"  {change.name}: {_short(change.old) or 'absent'} → {_short(change.new) or 'absent'}"


def _short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}…"  # noqa: PLR2004 - two values fit into a line
