"""The images of drydock's own names in the engine: which checkouts keep them, which containers use them. IO."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import docker
import docker.errors
from rich.filesize import decimal

from drydock.build import checkouts
from drydock.build.build_job import OWN, STAND_INS
from drydock.config.matrix import read_matrix
from drydock.core.console import as_lines, log
from drydock.core.project import Project
from drydock.engine import daemon, image_loading
from drydock.engine.connection import connect_engine, inspect_images
from drydock.lock import image_record

COMMITTED, OTHER, STAND_IN = "committed", "not committed", "stand-in"
"""What an image's digest is to this checkout's locks."""


class EngineImage(NamedTuple):
    """An image in the engine; one may have several names."""

    row: str
    tags: tuple[str, ...]
    """Those below drydock/ and drydock-stand-in/."""
    digest: str
    recorded: str
    size: int
    loaded: str
    """When it got its newest name; its own time is that of its inputs."""
    checkouts: tuple[str, ...]
    """Those that keep it."""
    containers: tuple[str, ...]
    releases: tuple[str, ...]
    """Of drydock, that have this digest."""


def list_engine_images(project: Project) -> list[EngineImage]:
    """Return the engine's images with names of ours, sorted by them. Raises EngineError."""
    committed, kept_names = {*_list_committed_digests(project)}, checkouts.list_kept_names()
    releases = image_record.read_releases(project)
    try:
        client = connect_engine()
        image_attrs = inspect_images(client)
        containers = client.api.containers(all=True)
    except docker.errors.DockerException as error:
        raise daemon.make_unreachable_error(error) from error
    engine_images = (_make_engine_image(attrs, committed, releases, kept_names, containers) for attrs in image_attrs)
    return sorted(image for image in engine_images if image.tags)


def _make_engine_image(
    attrs: Mapping[str, Any],
    committed: set[str],
    releases: Mapping[str, tuple[str, ...]],
    kept_names: Mapping[str, Sequence[str]],
    containers: Sequence[Mapping[str, Any]],
) -> EngineImage:
    tags = sorted(tag for tag in attrs.get("RepoTags") or () if tag.startswith((OWN, STAND_INS)))
    digest = str(attrs["Id"])
    recorded = COMMITTED if digest in committed else OTHER
    return EngineImage(
        row=tags[0].partition("/")[2].partition(":")[0] if tags else "",
        tags=tuple(tags),
        digest=digest,
        recorded=STAND_IN if tags and tags[0].startswith(STAND_INS) else recorded,
        size=int(attrs["Size"]),
        loaded=str((attrs.get("Metadata") or {}).get("LastTagTime") or attrs.get("Created") or ""),
        checkouts=tuple(sorted({path for tag in tags for path in kept_names.get(tag, ())})),
        containers=tuple(
            sorted(container["Names"][0][1:] for container in containers if container["ImageID"] == digest)
        ),
        releases=releases.get(digest, ()),
    )


def _list_committed_digests(project: Project) -> Iterator[str]:
    for variant in read_matrix(project):
        platforms = image_record.read_record(project, variant.id).platforms.values()
        yield from (platform.verified.digest for platform in platforms if platform.verified)


def list_unkept_images(images: Sequence[EngineImage]) -> list[EngineImage]:
    """Return the images that no checkout keeps and no container uses."""
    return [image for image in images if not (image.checkouts or image.containers)]


def remove_images(images: Sequence[EngineImage]) -> None:
    """Remove the names of images; an image without another name is gone."""
    for tag in (tag for image in images for tag in image.tags):
        image_loading.remove_image_name(tag)


def prune_images(images: Sequence[EngineImage], *, yes: bool) -> list[EngineImage]:
    """Return the images that no checkout keeps and no container uses; remove them if the user has said yes."""
    removable = list_unkept_images(images)
    if yes:
        remove_images(removable)
    elif removable:
        log(
            f"nothing was removed; --yes removes these {len(removable)}. Checkouts of other users, and with another"
            " DRYDOCK_CACHE, are not known here"
        )
    return removable


def format_images(images: Sequence[EngineImage], now: dt.datetime) -> str:
    """Return images with their names, of which one begins the digest, state, size, age, and who keeps or uses each."""
    return as_lines([line for image in images for line in _format_image(image, now)] or ["no image of drydock's"])


def _format_image(image: EngineImage, now: dt.datetime) -> Iterator[str]:
    name, *other_tags = image.tags
    more = "".join(f", {tag.rpartition(':')[2]}" for tag in other_tags)
    of_release = f", {image_record.name_releases(image.releases)}" if image.releases else ""
    yield f"{name}{more}  {image.recorded}{of_release}, {decimal(image.size)}, {_format_age(image.loaded, now)}"
    yield f"  kept by {', '.join(image.checkouts) or 'no checkout'}"
    if image.containers:
        yield f"  used by {', '.join(image.containers)}"


def _format_age(loaded: str, now: dt.datetime) -> str:
    """Return the time since an image was loaded: 5 min, 3 h, 2 days."""
    minutes = int((now - dt.datetime.fromisoformat(loaded)).total_seconds()) // 60
    hours, days = minutes // 60, minutes // (24 * 60)
    return f"{minutes} min ago" if not hours else f"{hours} h ago" if not days else f"{days} days ago"
