"""Builds a job's image and loads it into the engine: fetch → plan → BuildKit → OCI layout → engine. IO."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from drydock.build import bake_plan, buildx, checkouts, foundation, routes
from drydock.build.build_job import ATTACHED, Job, layouts_lock
from drydock.build.buildx import Bake
from drydock.core.console import log
from drydock.core.errors import FetchError, InputError, StaleError, UntrustedError
from drydock.core.paths import cache_home
from drydock.engine import daemon, image_loading
from drydock.inputs.store import default_store, whole_folder
from drydock.model.locked import LockedImageBase
from drydock.model.record import Record
from drydock.oci import image_layout

REMOTE = ("docker-image://", "https://")
"""Contexts that the builder gets from the network."""
Pull = Callable[[Job], bool]
"""Puts a job's foundation, made elsewhere, into its folder, and tells whether it did; raises no error."""


class Built(Record):
    """An image that the engine holds."""

    variant: str
    platform: str
    image: str
    """A reference the engine runs."""
    digest: str
    inputs_sha256: str
    layout: str
    """Folder of its OCI layout."""
    seconds: float
    phases: Mapping[str, float]
    """Seconds by phase; a phase that had nothing to do is absent."""


def fetch_contexts(job: Job, without: Collection[str] = (), *, with_programs: bool = True) -> dict[str, str]:
    """Fetch a job's inputs into the store, except for the contexts `without`; return the named build contexts."""
    from drydock.inputs import fetch  # noqa: PLC0415 - it imports what speaks to servers; most builds fetch nothing

    skipped = {*job.context_overrides, *without}
    pinned = fetch.fetch_inputs(
        *(job.project, job.variant, job.lock, job.platform),
        offline=job.offline,
        without=skipped,
        with_programs=with_programs,
    )
    entrypoints = default_store().folder({}, job.project.entrypoint)
    return {**pinned, "entrypoints": str(entrypoints), **job.context_overrides}


def refuse_pulls(job: Job, contexts: Mapping[str, str]) -> None:
    """Raise FetchError for contexts that the builder would get from the network, such as a base in a registry."""
    remote = {name: value for name, value in contexts.items() if value.startswith(REMOTE)}
    if remote:
        raise FetchError(
            *(f"not in the store: {name} {value}" for name, value in sorted(remote.items())),
            hint=f"run `./inv fetch --target {job.variant.id}` once with a network",
        )


def refuse_bake(job: Job) -> None:
    """Raise InputError for an image that BuildKit does not build."""
    if job.is_adopted:
        raise InputError(
            f"{job.variant.id}: adopted: BuildKit builds nothing of it, and would build another image",
            hint=f"`./inv build --target {job.variant.id}` adds two layers to its base",
        )


def bake_file(job: Job, contexts: Mapping[str, str], output: Path) -> dict[str, Any]:
    """Return the job's docker-bake.json, given what `fetch_contexts` returns."""
    contents = bake_plan.make_bake_plan(
        job.variant, job.lock, job.platform, contexts, job.context, output, exported=job.export
    )
    return bake_plan.add_labels(contents, job.stand_in_labels)


def build_image(  # noqa: PLR0913 - all but the job have defaults
    job: Job,
    *,
    builder: str | None = None,
    engine: Callable[[], object] | None = None,
    bake: Bake | None = None,
    no_cache: bool = False,
    into_engine: bool = True,
    hash_kept: bool = False,
    may_use_network: bool = True,
    pull: Pull | None = None,
) -> Built:
    """Build an image, unless it was built from the same inputs before, and load it, unless the engine has it.

    Without `may_use_network` the builder uses none either: a base that the store lacks is an error, as is an engine
    that is not installed. `pull` is asked for a foundation that is not kept. `engine` ensures that the engine runs, and
    `bake` builds a plan; rows that are built at once replace both.

    A kept layout is used if its digest is the recorded one, where these inputs have one, and if it is whole. The sizes
    of its blobs show that if the engine has the image; otherwise, and with `hash_kept`, their hashes do. Raises
    FetchError, EngineError, BuildError or DiskFullError; an interrupted build leaves no partial layout.
    """
    if into_engine or (builder is None and not job.is_adopted):
        engine = engine or partial(daemon.ensure_engine, install=may_use_network)
    bake = bake or partial(buildx.run_bake, builder=builder, no_cache=no_cache)
    clock = Clock()
    quick = into_engine and not no_cache and not hash_kept
    if quick and is_layout_usable(job, image_layout.is_sized_layout):
        names = image_loading.list_names_if_running(_image_of(job), image_layout.read_digest(job.layout))
        if _image_of(job) in names:
            log(f"{job.variant.id}: up to date: already built from the same inputs and loaded")
            _settle_job(job, into_engine=True, names=names)
            return _make_built(job, clock)
    if engine:
        engine()
        clock.lap("engine")
    with layouts_lock(job.variant.id, job.platform):
        _make_layout(job, clock, bake, builder=builder, no_cache=no_cache, may_use_network=may_use_network, pull=pull)
        if into_engine and load_into_engine(job.layout, _image_of(job)):
            clock.lap("load")
        _settle_job(job, into_engine=into_engine)
        _remove_other_layouts(job.layout, job.foundation)
    return _make_built(job, clock)


def is_layout_usable(job: Job, whole: Callable[[Path], bool]) -> bool:
    """Tell whether a kept layout is `whole` and has the digest recorded for its inputs; log why not."""
    if job.kept_layout is None:
        return False
    if not whole(job.layout):
        log(f"{job.variant.id}: {job.layout} is damaged: a blob is missing or was changed on the disk")
        return False
    try:
        job.refuse_other(image_layout.read_digest(job.layout))
    except UntrustedError as error:
        log("\n".join(error.problems))
        return False
    return True


def has_kept_foundation(job: Job, *, no_cache: bool) -> bool:
    """Tell whether a build stands on the kept foundation; its layers are hashed while it builds."""
    return not no_cache and image_layout.is_sized_layout(job.foundation)


def list_unread_contexts(job: Job, *, have_foundation: bool) -> tuple[str, ...]:
    """Return the named contexts that a build does not read."""
    return foundation.list_foundation_contexts(job.variant) if have_foundation else ()


def _image_of(job: Job) -> str:
    return job.image(image_layout.read_digest(job.layout))


def _make_built(job: Job, clock: Clock) -> Built:
    return Built(
        variant=job.variant.id,
        platform=job.platform,
        image=_image_of(job),
        digest=image_layout.read_digest(job.layout),
        inputs_sha256=job.inputs_sha256,
        layout=str(job.layout),
        seconds=clock.total(),
        phases=clock.laps,
    )


def load_into_engine(layout: Path, image: str) -> bool:
    """Load a layout into the engine; return false if the engine has it already."""
    if image_loading.has_complete_image(image, image_layout.read_digest(layout)):
        return False
    image_loading.load_layout(
        layout, image, (index.parent for index in cache_home().glob("images/*/*/[!.]*/index.json"))
    )
    return True


def settle_checkout(
    root: Path,
    image: str,
    platform: str,
    layouts: Mapping[str, Path],
    *,
    in_engine: bool,
    names: Collection[str] = (),
) -> None:
    """Note what a checkout keeps from now on; in the engine, `latest` names it, and what it replaces is removed.

    `names` are those that the engine is known to have of the image.
    """
    repository = image.rpartition(":")[0]
    layout_names = {kind: str(path.relative_to(cache_home())) for kind, path in layouts.items()}
    if in_engine:
        if image_loading.name_latest(image) not in names:
            image_loading.tag_latest(image)
        checkouts.keep_build(
            root, repository, platform, {**layout_names, "image": image}, image_loading.remove_image_name
        )
    else:
        checkouts.keep_build(root, repository, platform, layout_names)


def _settle_job(job: Job, *, into_engine: bool, names: Collection[str] = ()) -> None:
    layouts = {"layout": job.layout, "foundation": job.foundation}
    settle_checkout(job.project.root, _image_of(job), job.platform, layouts, in_engine=into_engine, names=names)


class Clock:
    """Seconds since its creation, in named laps."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End a lap."""
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 1)
        self._last = now

    def total(self) -> float:
        """Return the seconds so far."""
        return round(time.monotonic() - self._start, 1)


def _make_layout(  # noqa: PLR0913 - options of one build
    job: Job, clock: Clock, bake: Bake, *, builder: str | None, no_cache: bool, may_use_network: bool, pull: Pull | None
) -> None:
    if not no_cache and is_layout_usable(job, image_layout.is_sound_layout):
        origin = "loaded from a bundle of" if (job.layout / ATTACHED).is_dir() else "already built from"
        log(f"{job.variant.id}: up to date: {origin} the same inputs")
        return
    if job.is_adopted:
        _write_adopted_layout(job, clock, may_use_network=may_use_network)
        return
    have_foundation = has_kept_foundation(job, no_cache=no_cache)
    if pull and may_use_network and not (no_cache or have_foundation):
        have_foundation = pull(job)
        clock.lap("pull")
    if have_foundation and "base" not in job.context_overrides:
        from drydock.inputs import fetch  # noqa: PLC0415 - as above

        fetch.restore_base(job.pins, job.platform, job.lock.source_date_epoch, job.foundation)
    if not have_foundation and "base" not in job.context_overrides:  # a stand-in's base has this machine's programs
        _require_platform(job.platform, builder)
    unread = list_unread_contexts(job, have_foundation=have_foundation)
    # Only the foundation's steps run programs. To hash uv it is unpacked: 0.4 s of a processor.
    contexts = fetch_contexts(job, unread, with_programs=not have_foundation)
    if not may_use_network:
        refuse_pulls(job, contexts)
    # BuildKit requires a value for these contexts too, although it skips the steps that read them.
    contexts |= dict.fromkeys(unread, contexts["entrypoints"])
    clock.lap("fetch")
    for partial_layout in (*job.layout.parent.glob(".*"), *job.foundation.parent.glob(".*")):
        shutil.rmtree(partial_layout)
    if not have_foundation:
        routes.check_routes(job.project, contexts)
        with whole_folder(job.foundation, replace=True) as temporary:
            # Without labels: images with and without stand-ins in later stages share a foundation.
            exported = bake_plan.choose_export(job.foundation_recipe)
            foundation_plan = bake_plan.make_bake_plan(
                job.variant, job.lock, job.platform, contexts, job.context, temporary, exported=exported
            )
            foundation.build_foundation(foundation_plan, temporary, bake)
        clock.lap("foundation")
    try:
        with whole_folder(job.layout, replace=True) as temporary:
            foundation.complete_image(bake_file(job, contexts, temporary), temporary, job.foundation, bake)
    except foundation.DamagedError:
        log(f"{job.variant.id}: {job.foundation} is damaged: a layer was changed on the disk")
        shutil.rmtree(job.foundation)
        _make_layout(job, clock, bake, builder=builder, no_cache=no_cache, may_use_network=may_use_network, pull=pull)
        return
    clock.lap("build")
    _warn_of_other_digest(job)


def _require_platform(platform: str, builder: str | None) -> None:
    """Raise EngineError before gigabytes are fetched if the builder cannot run a platform's programs."""
    from drydock.inputs import wheels  # noqa: PLC0415 - as above

    if builder or not wheels.is_native_platform(platform):
        daemon.require_platform(platform, builder)


def _write_adopted_layout(job: Job, clock: Clock, *, may_use_network: bool) -> None:
    """Write the image of an adopted row: its base from the store or its registry, and two layers. Nothing is built."""
    from drydock.build import adoption  # noqa: PLC0415 - few rows are adopted
    from drydock.inputs import base_images  # noqa: PLC0415 - it imports what speaks to servers

    base = job.pins.base
    if not isinstance(base, LockedImageBase):
        raise StaleError(
            f"{job.variant.id}: its lock has no image as base", hint=f"./inv lock --target {job.variant.id}"
        )
    layout = base_images.fetch_base(base, job.platform, default_store(), offline=job.offline or not may_use_network)
    clock.lap("fetch")
    for partial_layout in job.layout.parent.glob(".*"):
        shutil.rmtree(partial_layout)
    with whole_folder(job.layout, replace=True) as temporary:
        adoption.write_layout(job.project, job.variant, str(base.digest), layout, temporary)
    clock.lap("build")
    _warn_of_other_digest(job)


def _warn_of_other_digest(job: Job) -> None:
    if job.recorded_digest not in (None, image_layout.read_digest(job.layout)):
        log(
            f"{job.variant.id}: built {image_layout.read_digest(job.layout)}, but {job.recorded_digest} is recorded for"
            " the same inputs: `publish` will refuse it, and `verify` shows what differs"
        )


def _remove_other_layouts(*layouts: Path) -> None:
    """Remove what lies next to layouts and no checkout keeps."""
    kept_names = checkouts.list_kept_names()
    for sibling in (sibling for layout in layouts for sibling in layout.parent.glob("*")):
        if sibling not in layouts and str(sibling.relative_to(cache_home())) not in kept_names:
            shutil.rmtree(sibling, ignore_errors=True)
