"""Says what a build would pin, download and build, and how much disk that takes. IO: reads lock, store and kept images.

`build`, `fetch` and `verify` print it with --dry-run. It asks no server and no engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from rich.filesize import decimal

from drydock.build import build, pins
from drydock.build.build_job import Job
from drydock.core.console import as_lines
from drydock.core.files import measure_free_bytes
from drydock.core.paths import cache_home
from drydock.core.user_language import translate_lines
from drydock.inputs import fetch
from drydock.inputs.store import default_store
from drydock.model.locked import LockedImageBase, LockedPlatform
from drydock.model.record import Record
from drydock.oci import image_layout

LEAST_NEEDED = 20_000_000_000
"""Bytes that an image and what it is built from take, if no lock says more: of a base image no lock has the size."""
ROOM = 9
"""How often the bytes of a lock's wheels are needed: the files, BuildKit's copy, its layers, the layout and the
engine's image, packed and unpacked. Measured: after a build of cpu-vllm0.32 (0.76 GB of wheels), 6.6 GB were taken."""


class Downloads(Record):
    """What the store lacks."""

    files: int = 0
    bytes: int = 0
    code: tuple[str, ...] = ()
    """Of git repositories, whose size is not known."""
    base: str = ""
    """Of an image in a registry, whose size is not known."""


class FetchPreview(Record):
    """What `fetch` would do."""

    variant: str
    platform: str
    pins: Mapping[str, str]
    """What the lock lacks, and why it does: it is pinned first, and downloaded."""
    downloads: Downloads
    free_bytes: int
    cache: str
    """The folder whose disk it is."""


class BuildPreview(FetchPreview):
    """What a build would do."""

    builds: tuple[Literal["foundation", "image"], ...]
    """Empty if the image is kept, built from the same inputs."""
    digest: str | None
    """Of the kept image, else the recorded one of the same inputs."""
    needed_bytes: int
    """Of the disk, by estimate; what exists is not counted. 0 if no foundation is built."""


def preview_fetch(job: Job) -> FetchPreview:
    """Return what `fetch` would do. Raises InputError if the project takes no pins that the lock lacks."""
    return FetchPreview(
        variant=job.variant.id,
        platform=job.platform,
        pins=_list_new_pins(job),
        downloads=list_downloads(job, has_foundation=False),
        free_bytes=measure_free_bytes(cache_home()),
        cache=str(cache_home()),
    )


def preview_build(job: Job, *, no_cache: bool = False) -> BuildPreview:
    """Return what a build would do. Raises InputError if the project takes no pins that the lock lacks."""
    unpinned = _list_new_pins(job)
    is_kept = not (no_cache or unpinned) and build.is_layout_usable(job, image_layout.is_sized_layout)
    has_foundation = job.is_adopted or build.has_kept_foundation(job, no_cache=no_cache or bool(unpinned))
    return BuildPreview(
        variant=job.variant.id,
        platform=job.platform,
        pins=unpinned,
        downloads=Downloads() if is_kept else list_downloads(job, has_foundation=has_foundation),
        builds=() if is_kept else ("image",) if has_foundation else ("foundation", "image"),
        digest=image_layout.read_digest(job.layout) if is_kept else None if unpinned else job.recorded_digest,
        needed_bytes=0 if has_foundation else estimate_needed_bytes(job.pins),
        free_bytes=measure_free_bytes(cache_home()),
        cache=str(cache_home()),
    )


def _list_new_pins(job: Job) -> dict[str, str]:
    unpinned = pins.find_missing_pins(pins.accept_emulated_base(job))
    if unpinned:
        job.project.check_writable(f"images/{job.variant.id}/lock.json")
    return unpinned


def list_downloads(job: Job, *, has_foundation: bool) -> Downloads:
    """Return what a build would download, on a kept foundation or without one."""
    unread = {*job.context_overrides, *build.list_unread_contexts(job, have_foundation=has_foundation)}
    base, store = job.pins.base, default_store()
    without = unread if isinstance(base, LockedImageBase) or not has_foundation else {*unread, "base"}  # it is restored
    needed = fetch.select_needed_inputs(
        job.lock, job.platform, store, without=without, with_programs=not has_foundation
    )
    missing = fetch.list_missing_inputs(needed, store)
    return Downloads(
        files=sum(size > 0 for _, size in missing),
        bytes=sum(size for _, size in missing),
        code=tuple(name for name, size in missing if not size),
        base="" if "base" in without else _name_missing_base(job),
    )


def _name_missing_base(job: Job) -> str:
    """Return the base image if the store lacks it; the builder may have it."""
    base = job.pins.base
    if not isinstance(base, LockedImageBase) or not base.digest:
        return ""
    folder = fetch.image_folder(base.digest, job.platform, default_store())
    return "" if image_layout.is_intact_layout(folder) else f"{base.reference}@{base.digest}"


def estimate_needed_bytes(locked: LockedPlatform | None) -> int:
    """Return the bytes of disk that a build from nothing takes. `locked`: the row's pins, if a row is given."""
    needed = ROOM * sum(_list_wheel_sizes(locked))
    return max(needed, LEAST_NEEDED) if locked is None or isinstance(locked.base, LockedImageBase) else needed


def _list_wheel_sizes(locked: LockedPlatform | None) -> Iterator[int]:
    if locked:
        yield from (wheel.size for wheels in (*locked.layers.values(), locked.build, locked.tools) for wheel in wheels)


def format_build_preview(preview: BuildPreview) -> str:
    """Return lines that say what a build would do."""
    return translate_lines(as_lines((*list_preview_lines(preview), *_list_disk_lines(preview))))


def list_preview_lines(preview: BuildPreview) -> Iterator[str]:
    """Yield what would be pinned, downloaded and built."""
    row = f"{preview.variant} ({preview.platform})"
    if preview.pins:
        yield f"would pin and download what images/{preview.variant}/lock.json lacks: {', '.join(sorted(preview.pins))}"
    yield from list_download_lines(preview.downloads)
    if not preview.builds:
        yield f"would build nothing: {row} is built from the same inputs: {preview.digest}"
    elif "foundation" in preview.builds:
        yield f"would build the foundation and the image of {row}"
    else:
        yield f"would build the image of {row} on the kept foundation"
    if preview.builds and preview.digest:
        yield f"expected digest: {preview.digest}, which is recorded for the same inputs"


def list_download_lines(downloads: Downloads) -> Iterator[str]:
    """Yield what would be downloaded."""
    if downloads.files:
        yield f"would download {downloads.files} files: {decimal(downloads.bytes)}"
    if downloads.code:
        yield f"would download code of unknown size: {', '.join(text.partition(' ')[0] for text in downloads.code)}"
    if downloads.base:
        yield f"would download a base of unknown size, unless the builder has it: {downloads.base}"
    if downloads == Downloads():
        yield "would download nothing"


def _list_disk_lines(preview: BuildPreview) -> Iterator[str]:
    if preview.builds and preview.needed_bytes:
        yield format_disk_line(preview.needed_bytes, preview.free_bytes, preview.cache)


def format_disk_line(needed: int, free: int, cache: str) -> str:
    """Return how much disk is needed and free."""
    return f"disk: about {decimal(needed)} needed, {decimal(free)} free in {cache}"
