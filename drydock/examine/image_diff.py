"""Compare two images: packages, files, sizes, flags. The comparison is pure; reading the images is IO."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from drydock.attest.contents import ImageContents, read_contents
from drydock.core.console import as_lines
from drydock.core.differences import find_differences
from drydock.core.errors import InputError, UntrustedError
from drydock.core.files import parse_json_object
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


def diff_images(old: str, new: str, *, platform: str = "", insecure: bool = False) -> ImageDiff:
    """Return the changes. Raises InputError if the images have no platform in common, and the errors of reading."""
    images = [open_image(reference, insecure=insecure) for reference in (old, new)]
    common_platform = _choose_common_platform(images, platform)
    return compare_sides(common_platform, *(_read_side(image, common_platform) for image in images))


def compare_sides(platform: str, old: Side, new: Side) -> ImageDiff:
    """Return the changes between two images. Pure."""
    packages = _list_changes(_list_packages(old.contents), _list_packages(new.contents))
    changed_packages = {change.name for change in packages}
    files = _list_changes(_list_files(old.contents), _list_files(new.contents))
    other_files = [change for change in files if not _find_file_owners(change.name, old, new) & changed_packages]
    sizes = {
        "compressed": (old.compressed, new.compressed),
        "files": (_sum_file_sizes(old.contents), _sum_file_sizes(new.contents)),
    }
    return ImageDiff(
        old=old.digest,
        new=new.digest,
        platform=platform,
        same=old.digest == new.digest,
        packages=packages,
        flags=_list_changes(_list_flags(old.contents), _list_flags(new.contents)),
        config=_list_changes(_list_config(old), _list_config(new)),
        files=tuple(other_files),
        files_of_packages=len(files) - len(other_files),
        sizes=sizes,
    )


def format_image_diff(difference: ImageDiff) -> str:
    """Return the result as text."""
    if difference.same:
        return f"the same: {difference.old}\n"
    lines = [f"{difference.old} → {difference.new} ({difference.platform})"]
    for title, changes in (
        ("packages", difference.packages),
        ("flags", difference.flags),
        ("config", difference.config),
    ):
        lines += [f"{title}:", *map(_format_change, changes)] if changes else []
    if difference.files or difference.files_of_packages:
        lines.append(f"files: {difference.files_of_packages} in the packages above, {len(difference.files)} others")
        lines += [_format_change(change) for change in difference.files[:SHOWN]]
    lines += [f"{name}: {old / 1e6:.1f} → {new / 1e6:.1f} MB" for name, (old, new) in difference.sizes.items()]
    return as_lines(lines)


def _choose_common_platform(images: Iterable[Image], requested: str) -> str:
    first, second = (set(image.platforms) for image in images)
    common = sorted(first & second)
    if not common:
        raise InputError("the two images have no platform in common")
    if requested and requested not in common:
        raise InputError(f"--platform {requested}: expected a platform of both images: {', '.join(common)}")
    return requested or common[0]


def _read_side(image: Image, platform: str) -> Side:
    manifest = image.platforms[platform]
    content = manifest.content
    config = image.config(platform)["config"]
    compressed = sum(int(layer["size"]) for layer in content["layers"])
    return Side(manifest.digest, read_contents(content, image.blob), config, compressed)


def _list_changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[ImageChange, ...]:
    changes = sorted(find_differences(old, new))
    return tuple(ImageChange(name, before or "", after or "") for name, before, after in changes)


def _list_packages(contents: ImageContents) -> dict[str, str]:
    return {package.owner: package.version for package in contents.packages if not package.within}


def _list_flags(contents: ImageContents) -> dict[str, str]:
    profile = parse_json_object(contents.texts.get(PROFILE, "{}"), PROFILE, UntrustedError)
    return {str(item["setting"]): json.dumps(item["value"]) for item in profile.get("settings", ())}


def _list_config(side: Side) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in side.config.items()}


def _list_files(contents: ImageContents) -> dict[str, str]:
    return {path: f"{file.sha256 or file.link} {file.mode:o}" for path, file in contents.files.items()}


def _find_file_owners(path: str, *sides: Side) -> set[str]:
    return {side.contents.owners.get(path, "") for side in sides}


def _sum_file_sizes(contents: ImageContents) -> int:
    return sum(file.size for file in contents.files.values())


def _format_change(change: ImageChange) -> str:
    return f"  {change.name}: {_shorten_cell(change.old) or 'absent'} → {_shorten_cell(change.new) or 'absent'}"


def _shorten_cell(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}…"  # noqa: PLR2004 - two values fit into a line
