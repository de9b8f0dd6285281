"""Builds many rows at once, a few at a time, each as if it were built alone; BuildKit shares their steps. IO.

Rows of one foundation wait for each other: the first makes it, the others copy it. With several builders each row stays
with one, which has its platform. The largest row comes first, and goes to the builder that has the fewest bytes to
install.

One `buildx bake` of all rows is no faster (ten rows on two cores: 58 s, and 53 s so), and ends all if one fails.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from drydock.build import build, buildx
from drydock.build.build_job import Job
from drydock.build.build_progress import Log
from drydock.core.console import log, show_step
from drydock.core.errors import DrydockError, EngineError, explain_os_error
from drydock.core.files import link_or_copy
from drydock.core.paths import cache_home
from drydock.core.threads import start_daemon
from drydock.engine import daemon
from drydock.inputs import wheels
from drydock.inputs.store import whole_folder
from drydock.model.record import Record
from drydock.model.variant import Variant
from drydock.oci import image_layout

AT_ONCE = 4
"""Rows that one builder builds at the same time: ten took longer on two cores, and each holds a buildx of 60 MB."""
NOTICED_WITHIN = 2.0
"""Seconds in which Ctrl-C reaches drydock after it has reached buildx."""


class ManyOptions(NamedTuple):
    """How many rows are built."""

    builders: Sequence[str] = ()
    """Empty: the engine's own."""
    no_cache: bool = False
    may_use_network: bool = True
    pull: build.Pull | None = None
    """What is asked for foundations that are not kept."""


class Outcome(Record):
    """What came of a row."""

    variant: str
    platform: str
    state: Literal["built", "up to date", "failed", "left out"]
    seconds: float = 0
    """Of its build, with what it waited for other rows."""
    cached: str = ""
    """What did not have to be built: image, foundation, or how many of its steps."""
    image: str = ""
    digest: str = ""
    recorded: Literal["as committed", "differs", "not recorded", ""] = ""
    why: str = ""
    hint: str = ""
    exit_code: int = 0


def prepare_jobs(
    variants: Sequence[Variant], prepare: Callable[[str], Job], platform: str
) -> tuple[list[Job], list[Outcome]]:
    """Return a job for each row that has one, and why the others have none."""
    jobs: list[Job] = []
    failures: list[Outcome] = []
    for variant in variants:
        try:
            jobs.append(prepare(variant.id))
        except DrydockError as error:
            failures.append(record_failure(variant.id, platform or variant.platforms[0], error))
    return jobs, failures


def record_failure(variant: str, platform: str, error: DrydockError, seconds: float = 0) -> Outcome:
    """Return the outcome of a row that failed, and say why."""
    log(f"{variant}: error: {error}")
    return Outcome(
        variant=variant,
        platform=platform,
        state="failed",
        seconds=round(seconds, 1),
        why=" ".join(problem.strip() for problem in error.problems),
        hint=error.hint,
        exit_code=error.code,
    )


def build_all(jobs: Sequence[Job], options: ManyOptions = ManyOptions()) -> list[Outcome]:  # noqa: B008 - immutable
    """Build rows, one of each variant, and load them into the engine; return what came of each, in their order.

    A row that fails stops no other. Raises EngineError if there is no engine or builder; an interrupted build stops all
    rows and leaves no partial layout of any.
    """
    if not jobs:
        return []
    run = _Run(options)
    builders = _assign_builders(jobs, options.builders, run.ensure_engine)
    with show_step("build"):
        futures = {
            job.variant.id: start_daemon(partial(run.build_row, job, builders[job.variant.id]))
            for job in sorted(jobs, key=lambda job: -_sum_wheel_bytes(job))
        }
        try:
            return [futures[job.variant.id].result() for job in jobs]
        except BaseException:
            run.stop(futures.values())
            raise


class _Run:
    """What the rows of one call have in common."""

    def __init__(self, options: ManyOptions) -> None:
        self._options = options
        self._engine_lock = threading.Lock()
        self._has_engine = False
        self._engine_error: EngineError | None = None
        self._foundation_locks: dict[str, threading.Lock] = {}
        self._places = threading.Semaphore(AT_ONCE * max(1, len(options.builders)))
        self._stopped = threading.Event()

    def ensure_engine(self) -> None:
        """Make sure of the engine, once for all rows. Raises EngineError, the same for all."""
        with self._engine_lock:
            if self._engine_error:
                raise self._engine_error
            if self._has_engine:
                return
            try:
                daemon.ensure_engine(install=self._options.may_use_network)
            except EngineError as error:
                self._engine_error = error
                raise
            self._has_engine = True

    def build_row(self, job: Job, builder: str | EngineError | None) -> Outcome:
        """Build a row; return what came of it. Raises EngineError if there is no engine."""
        begin = time.monotonic()
        try:
            if isinstance(builder, EngineError):
                raise builder
            foundation_lock = self._foundation_locks.setdefault(job.foundation.name, threading.Lock())
            with nullcontext() if self._options.no_cache else foundation_lock, self._places:
                if not self._options.no_cache:
                    _share_foundation(job)
                return self._build(job, builder)
        except (DrydockError, OSError) as cause:
            error = explain_os_error(cause) if isinstance(cause, OSError) else cause
            if error is self._engine_error or self._stopped.is_set():
                raise
            if isinstance(error, buildx.StoppedError) and self._stopped.wait(NOTICED_WITHIN):
                raise
            return record_failure(job.variant.id, job.platform, error, time.monotonic() - begin)

    def _build(self, job: Job, builder: str | None) -> Outcome:
        logs: list[Log] = []
        name = job.variant.id
        self._refuse_stopped(name)
        with show_step(name) as step:

            def bake(plan: buildx.Plan) -> None:
                self._refuse_stopped(name)
                logs.append(buildx.run_row_bake(plan, name, step, builder=builder, no_cache=self._options.no_cache))

            built = build.build_image(
                job,
                builder=builder,
                engine=self.ensure_engine,
                bake=bake,
                no_cache=self._options.no_cache,
                may_use_network=self._options.may_use_network,
                pull=self._options.pull,
            )
        return _make_outcome(job, built, logs)

    def _refuse_stopped(self, name: str) -> None:
        if self._stopped.is_set():
            raise buildx.StoppedError(f"{name}: stopped")

    def stop(self, futures: Iterable[Future[Outcome]]) -> None:
        """Stop the bakes of all rows, and wait until the rows have tidied up.

        A row that waits for a server or another run cannot be stopped: it ends with this process, as if it were killed.
        """
        self._stopped.set()
        waiting = list(futures)
        begin = time.monotonic()
        while not all(future.done() for future in waiting) and time.monotonic() - begin < buildx.STOPS_WITHIN:
            buildx.stop_row_bakes()
            time.sleep(0.1)
        buildx.stop_row_bakes(kill=True)


def _make_outcome(job: Job, built: build.Built, logs: Sequence[Log]) -> Outcome:
    steps: dict[str, bool] = {}
    for build_log in logs:
        steps = {**build_log.done, **steps}
    is_built = bool(logs) or "build" in built.phases  # an adopted image is assembled without a builder
    cached = "image" if not is_built else "foundation" if logs else ""
    if "foundation" in built.phases:
        cached = f"{sum(steps.values())} of {len(steps)} steps"
    recorded = job.recorded_digest
    return Outcome(
        variant=built.variant,
        platform=built.platform,
        state="built" if is_built else "up to date",
        seconds=built.seconds,
        cached=cached,
        image=built.image,
        digest=built.digest,
        recorded="not recorded" if not recorded else "as committed" if recorded == built.digest else "differs",
    )


def _share_foundation(job: Job) -> None:
    """Link the foundation of another row if it has the same recipe and this row has none."""
    mine = job.foundation
    if _has_index(mine):
        return
    for layout in cache_home().glob(f"foundations/*/{mine.parent.name}/{mine.name}"):
        if image_layout.is_sound_layout(layout):
            with whole_folder(mine, replace_unless=_has_index) as temporary:
                shutil.copytree(layout, temporary, dirs_exist_ok=True, copy_function=link_or_copy)
            return


def _has_index(layout: Path) -> bool:
    return (layout / "index.json").is_file()


def _assign_builders(
    jobs: Sequence[Job], builders: Sequence[str], ensure_engine: Callable[[], object]
) -> dict[str, str | EngineError | None]:
    """Return the builder of each row by its variant, or why none can build it; buildx chooses among its nodes.

    Raises EngineError for a builder that does not answer.
    """
    assigned: dict[str, str | EngineError | None] = dict.fromkeys(job.variant.id for job in jobs)
    jobs = [job for job in jobs if not job.is_adopted]  # nothing of them is built
    if not builders and all(wheels.is_native_platform(job.platform) for job in jobs):
        return assigned
    if not builders:
        ensure_engine()
    load: dict[str | None, int] = dict.fromkeys(builders or (None,), 0)
    platforms = {builder: daemon.list_builder_platforms(builder) for builder in load}
    for job in sorted(jobs, key=lambda job: -_sum_wheel_bytes(job)):
        able = [builder for builder in load if job.platform in platforms[builder]]
        if not able:
            assigned[job.variant.id] = daemon.make_platform_error(job.platform, platforms)
            continue
        builder = min(able, key=lambda builder: load[builder])
        assigned[job.variant.id] = builder
        load[builder] += _sum_wheel_bytes(job)
    return assigned


def _sum_wheel_bytes(job: Job) -> int:
    return 1 + sum(wheel.size for layer in job.pins.layers.values() for wheel in layer)


# --- what is printed ------------------------------------------------------------------------------------------------

COLUMNS = ("row", "seconds", "cached", "digest", "")


def format_build_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Return one line for each row, and below why rows failed or were left out."""
    cells = [COLUMNS, *(_make_outcome_cells(outcome) for outcome in outcomes if outcome.state != "left out")]
    widths = [max(len(line[place]) for line in cells) for place in range(len(COLUMNS))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    lines = lines if len(lines) > 1 else ["nothing to build"]
    return "".join(f"{line}\n" for line in (*lines, *list_outcome_reasons(outcomes)))


def list_outcome_reasons(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield lines that say why rows failed or were left out."""
    for state in ("failed", "left out"):
        reasons: dict[str, list[str]] = {}
        for outcome in (row for row in outcomes if row.state == state):
            reasons.setdefault(outcome.why, []).append(outcome.variant)
        if reasons:
            yield from ("", f"{state}:", *(f"  {', '.join(names)}: {why}" for why, names in reasons.items()))


def _make_outcome_cells(outcome: Outcome) -> tuple[str, ...]:
    if outcome.state == "failed":
        return outcome.variant, f"{outcome.seconds:.1f}", "", "", "failed"
    return outcome.variant, f"{outcome.seconds:.1f}", outcome.cached, outcome.digest, outcome.recorded
