"""Target in, image in the engine out: lock → fetch → plan → BuildKit → OCI layout → engine. IO.

Kept of each variant are the OCI layout of its newest build, with which `verify` compares, and that of its foundation,
on which the next build stands.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform as host
import shutil
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from drydock.build import buildx, foundation, plan, render
from drydock.config import matrix
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import exclusive
from drydock.core.paths import ROOT, cache_home
from drydock.engine import daemon, loading
from drydock.inputs import fetch, overrides
from drydock.inputs.store import default_store, whole_folder
from drydock.lock import lockfile
from drydock.model.locked import Lock
from drydock.model.record import Record
from drydock.model.variant import Variant
from drydock.oci import layout as oci

ARCHITECTURES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64", "s390x": "linux/s390x", "ppc64le": "linux/ppc64le"}


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


class Job(Record):
    """One variant for one platform, ready to be planned."""

    variant: Variant
    lock: Lock
    platform: str
    offline: bool = False
    contexts: Mapping[str, str] = {}
    """Named contexts that something else stands in for: a folder, or what bake takes (docker-image://…)."""
    root: Path = ROOT


class Wish(NamedTuple):
    """What a build is asked for beside its target."""

    platform: str | None = None
    offline: bool = False
    contexts: Mapping[str, str] = MappingProxyType({})
    allow_unlocked: bool = False


PLAIN = Wish()


def prepare(target: str, wish: Wish = PLAIN, *, root: Path = ROOT) -> Job:
    """Read what a build of `target` needs from the repository, and refuse what is stale.

    What the lock could not pin is resolved now with `allow_unlocked`; the lock on disk stays as it is. Raises
    TargetError, InputError or StaleError.
    """
    variant = matrix.find(matrix.read_matrix(root), target)
    pins = lockfile.read_lock(lockfile.path_of(root, variant.id))
    lockfile.check(variant, pins)
    render.check(root, variant, pins)
    platform = choose_platform(variant, wish.platform)
    contexts = overrides.resolve(variant, pins.platforms[platform], wish.contexts)
    if wish.allow_unlocked and set(pins.platforms[platform].unresolved) - set(contexts):
        pins = lockfile.complete(variant, pins)
    return Job(variant=variant, lock=pins, platform=platform, offline=wish.offline, contexts=contexts, root=root)


def choose_platform(variant: Variant, asked: str | None, machine: str = "") -> str:
    """Return the platform to build: the one asked for, else the host's own, else the variant's first.

    Raises InputError for one the variant does not have.
    """
    if asked and asked not in variant.platforms:
        raise InputError(f"--platform {asked}: {variant.id} is built for {', '.join(variant.platforms)}")
    own = ARCHITECTURES.get(machine or host.machine(), "")
    return asked or (own if own in variant.platforms else variant.platforms[0])


def inputs(job: Job, without: Collection[str] = ()) -> dict[str, str]:
    """Bring the inputs of a job into the store, but for some, and return them as named build contexts."""
    skipped = {*job.contexts, *without}
    pinned = fetch.fetch(job.variant, job.lock, job.platform, offline=job.offline, without=skipped, root=job.root)
    return {
        **pinned,
        "entrypoints": str(default_store().folder({}, entrypoint_files(job.root))),
        **job.contexts,
    }


def kept(job: Job) -> Path | None:
    """Return the OCI layout of the newest build of these very inputs; None where there is none."""
    layout = home_of(job.variant.id, job.platform) / inputs_sha256(job)
    return layout if (layout / "index.json").is_file() else None


def inputs_sha256(job: Job) -> str:
    """Return the checksum of everything the job's digest depends on; needs neither network nor store."""
    folder = job.root / "images" / job.variant.id
    sources = {name: (folder / name).read_bytes() for name in ("Dockerfile", "profile.json")}
    return _checksum(job, sources | {f"entrypoints/{name}": text for name, text in entrypoint_files(job.root).items()})


def foundation_of(job: Job) -> Path:
    """Return where the OCI layout of a job's foundation lies, or would lie: by everything that it depends on."""
    recipe = foundation.recipe((job.root / "images" / job.variant.id / "Dockerfile").read_text())
    contexts = {name: value for name, value in job.contexts.items() if name != "entrypoints"}
    key = _checksum(job.model_copy(update={"contexts": contexts}), {"Dockerfile": recipe.encode()})
    return home_of(job.variant.id, job.platform, "foundations") / key


def _checksum(job: Job, files: Mapping[str, bytes]) -> str:
    """Return the checksum of some of the repository's files and of what else goes into any image of a job."""
    tools = {f"tools/{path.name}": path.read_bytes() for path in (job.root / "templates" / "tools").glob("*.py")}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in {**files, **tools}.items()}
    hashes |= {f"context {name}": overrides.identity(value) for name, value in job.contexts.items()}
    return plan.inputs_sha256(job.variant, job.lock, job.platform, hashes)


def entrypoint_files(root: Path) -> dict[str, bytes]:
    """Return the entrypoint's modules and scripts, and its plugin's metadata, by path, for copying into each image."""
    folder = root / "entrypoints"
    found = sorted([*folder.rglob("*.py"), *folder.rglob("*.sh"), *folder.rglob("*.dist-info/*")])
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def bake_file(job: Job, contexts: Mapping[str, str], output: Path) -> dict[str, Any]:
    """Return the job's docker-bake.json, given what `inputs` returns."""
    context = job.root / "images" / job.variant.id
    return plan.plan(job.variant, job.lock, job.platform, contexts, context, output)


def build(job: Job, *, builder: str | None = None, no_cache: bool = False, into_engine: bool = True) -> Built:
    """Build an image, unless it was built from the same inputs before, and load it, unless the engine has it.

    Raises FetchError, EngineError, BuildError or DiskFullError; a build that breaks off leaves nothing half-made.
    """
    clock = Clock()
    before = None if no_cache else kept(job)
    if before and into_engine and loading.holds(_image_of(job, before), oci.read_digest(before)):
        log(f"{job.variant.id}: built before from the same inputs, and in the engine")
        return _built(job, before, clock)
    if into_engine or builder is None:
        daemon.ensure()
        clock.lap("engine")
    with turn(job.variant.id, job.platform):
        layout = _make_layout(job, clock, builder=builder, no_cache=no_cache)
        if into_engine and offer(layout, _image_of(job, layout)):
            clock.lap("load")
        _forget_all_but(layout)
    return _built(job, layout, clock)


def _image_of(job: Job, layout: Path) -> str:
    return name_of(job.variant.id, oci.read_digest(layout))


def _built(job: Job, layout: Path, clock: Clock) -> Built:
    return Built(
        variant=job.variant.id,
        platform=job.platform,
        image=_image_of(job, layout),
        digest=oci.read_digest(layout),
        inputs_sha256=layout.name,
        layout=str(layout),
        seconds=clock.total(),
        phases=clock.laps,
    )


def name_of(variant: str, digest: str) -> str:
    """Return what the engine calls an image."""
    return f"drydock/{variant}:{digest.removeprefix('sha256:')[:12]}"


def offer(layout: Path, image: str) -> bool:
    """Load a layout into the engine, as its variant's newest, unless it is there; tell whether it was not."""
    if loading.has(image, oci.read_digest(layout)):
        return False
    loading.load(layout, image, (index.parent for index in cache_home().glob("images/*/*/[!.]*/index.json")))
    loading.supersede(image)
    return True


def home_of(variant: str, platform: str, what: str = "images") -> Path:
    """Return the folder of the layouts that are kept of a variant; none is written but under its lock."""
    return cache_home() / what / variant / platform.replace("/", "-")


def turn(variant: str, platform: str) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a variant's layouts."""
    folder = home_of(variant, platform)
    return exclusive(folder.parent / f"{folder.name}.lock")


class Clock:
    """Seconds since its making, cut into named laps."""

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


def _make_layout(job: Job, clock: Clock, *, builder: str | None, no_cache: bool) -> Path:
    final = home_of(job.variant.id, job.platform) / inputs_sha256(job)
    if (final / "index.json").is_file() and not no_cache:
        log(f"{job.variant.id}: built before from the same inputs")
        return final
    below = foundation_of(job)
    there = not no_cache and oci.sound(below)
    unread = foundation.contexts(job.variant) if there else ()
    contexts = inputs(job, unread)
    contexts |= dict.fromkeys(unread, contexts["entrypoints"])  # steps name them that are not run
    clock.lap("fetch")
    for broken_off in (*final.parent.glob(".*"), *below.parent.glob(".*")):
        shutil.rmtree(broken_off)
    bake = partial(buildx.bake, builder=builder, no_cache=no_cache)
    if not there:
        with whole_folder(below, replace=True) as temporary:
            foundation.make(bake_file(job, contexts, temporary), temporary, bake)
        _forget_all_but(below)
        clock.lap("foundation")
    with whole_folder(final, replace=True) as temporary:
        foundation.complete(bake_file(job, contexts, temporary), temporary, below, bake)
    clock.lap("build")
    return final


def _forget_all_but(layout: Path) -> None:
    for other in layout.parent.iterdir():
        if other != layout:
            shutil.rmtree(other, ignore_errors=True)
