"""Builds many rows at once: what they bake next goes into one `buildx bake`, so BuildKit does shared work once. IO.

The first bake has the foundations that are missing, and the images of those that are kept; the second the other images.
If a target fails, buildx cancels the rest of its bake. So the rest is baked again, each target by itself and all at the
same time: a second failure stops no other. BuildKit has kept what was complete, and shares work between bakes too.

With several builders each row stays with one, which has its platform. The largest row comes first, and goes to the
builder that has the fewest bytes to install.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from drydock.build import bake_plan, build, buildx, foundation
from drydock.build.build_job import Job
from drydock.build.build_progress import Log
from drydock.build.build_steps import Plan, Steps
from drydock.core.console import Step, log, show_step
from drydock.core.errors import DrydockError, EngineError
from drydock.core.files import hold_lock_file, link_or_copy
from drydock.core.paths import cache_home
from drydock.engine import daemon
from drydock.inputs import wheels as resolve
from drydock.inputs.store import whole_folder
from drydock.model.record import Record
from drydock.oci import image_layout as oci


class ManyOptions(NamedTuple):
    """How many rows are built."""

    builders: Sequence[str] = ()
    """Empty: the engine's own."""
    no_cache: bool = False
    may_pull: bool = True
    pull: build.Pull | None = None
    """What is asked for foundations that are not kept."""


class Outcome(Record):
    """What came of a row."""

    variant: str
    platform: str
    state: Literal["built", "up to date", "failed", "left out"]
    seconds: float = 0
    """From the begin of each of its own steps to its end. Rows that are built together overlap."""
    cached: str = ""
    """What did not have to be built: image, foundation, or how many of its steps."""
    image: str = ""
    digest: str = ""
    recorded: Literal["as committed", "differs", "not recorded", ""] = ""
    why: str = ""
    hint: str = ""
    exit_code: int = 0


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

    A row that fails stops no other. Raises EngineError if there is no engine or builder; an interrupted build leaves no
    partial layout of any row.
    """
    if not jobs:
        return []
    engine = functools.cache(functools.partial(_ensure_engine, install=options.may_pull))
    rows = [_Row(job, options, engine) for job in jobs]
    _assign_builders(rows, options.builders, engine)
    # Each row holds its lock to the end: a second run like this one, in another order, would wait for ever.
    with hold_lock_file(cache_home() / "many.lock"), show_step("build"), contextlib.ExitStack() as tidy:
        for row in rows:
            tidy.callback(row.steps.close)
        new: Sequence[_Row] = [row for row in rows if not row.outcome]
        while True:
            new = _start_rows(new, share=not options.no_cache)
            if not (waiting := [row for row in rows if row.plan]):
                return [row.outcome for row in rows if row.outcome]
            errors = _bake_rows(waiting, no_cache=options.no_cache)
            for row in waiting:
                row.advance(errors.get(row.name))


class _NoEngineError(EngineError):
    """No row can be built."""


def _ensure_engine(*, install: bool) -> object:
    try:
        return daemon.ensure_engine(install=install)
    except EngineError as error:
        raise _NoEngineError(*error.problems, hint=error.hint) from error


class _Row:
    """A row that is being built: the generator of its plans, and what is known of it so far."""

    def __init__(self, job: Job, options: ManyOptions, engine: Callable[[], object]) -> None:
        self.job = job
        self.builder: str | None = None
        self.plan: Plan | None = None
        self.outcome: Outcome | None = None
        self.shown: Step | None = None
        self.seconds = 0.0
        self._done: dict[str, bool] = {}
        self._baked = self._made_foundation = False
        self.steps = self._steps(options, engine)

    @property
    def name(self) -> str:
        """Return the name of the row's target in a bake file."""
        return bake_plan.bake_name(self.job.variant.id)

    @property
    def target(self) -> Mapping[str, Any]:
        """Return what the row bakes next; empty if that is nothing."""
        return self.plan["target"][self.name] if self.plan else {}

    @property
    def makes_foundation(self) -> bool:
        """Tell whether the row bakes its foundation next."""
        return self.target.get("target") == foundation.STAGE

    @property
    def is_exported(self) -> bool:
        """Tell whether what the row bakes is there, whole."""
        return oci.is_sound_layout(Path(bake_plan.read_destination(self.target)))

    def _steps(self, options: ManyOptions, engine: Callable[[], object]) -> Steps[build.Built]:
        with show_step(self.job.variant.id) as self.shown:
            steps = build.build_in_steps(
                self.job, engine, no_cache=options.no_cache, may_pull=options.may_pull, pull=options.pull
            )
            return (yield from steps)

    def advance(self, error: DrydockError | None = None) -> None:
        """Go on to the next plan, or to the end."""
        begin, self.plan = time.monotonic(), None
        try:
            self.plan = self.steps.throw(error) if error else next(self.steps)
        except StopIteration as end:
            self.seconds += time.monotonic() - begin
            self.outcome = self._built(end.value)
        except _NoEngineError:
            raise
        except DrydockError as reason:
            self.outcome = record_failure(self.job.variant.id, self.job.platform, reason, self.seconds)
        else:
            self.seconds += time.monotonic() - begin
            self._baked = True
            self._made_foundation = self._made_foundation or self.makes_foundation

    def note(self, build_log: Log, begin: float) -> None:
        """Take over what a bake has done for this row, at its end."""
        target = build_log.targets[self.name]
        self.seconds += max(0.0, target.ended - begin)
        self._done = {**target.done, **self._done}

    def _built(self, built: build.Built) -> Outcome:
        recorded = self.job.recorded_digest
        cached = "image" if not self._baked else "foundation"
        if self._made_foundation:
            cached = f"{sum(self._done.values())} of {len(self._done)} steps"
        return Outcome(
            variant=built.variant,
            platform=built.platform,
            state="built" if self._baked else "up to date",
            seconds=round(self.seconds, 1),
            cached=cached,
            image=built.image,
            digest=built.digest,
            recorded="not recorded" if not recorded else "as committed" if recorded == built.digest else "differs",
        )


def _start_rows(rows: Iterable[_Row], *, share: bool) -> list[_Row]:
    """Start rows; return those that wait, because another row makes the foundation that they have in common."""
    making: set[str] = set()
    later = []
    for row in rows:
        if share and row.job.foundation.name in making:
            later.append(row)
            continue
        if share:
            _share_foundation(row.job)
        row.advance()
        if row.makes_foundation:
            making.add(row.job.foundation.name)
    return later


def _share_foundation(job: Job) -> None:
    """Link the foundation of another row if it has the same recipe and this row has none."""
    mine = job.foundation
    if (mine / "index.json").is_file():
        return
    for layout in cache_home().glob(f"foundations/*/{mine.parent.name}/{mine.name}"):
        if oci.is_sound_layout(layout):
            with whole_folder(mine, replace=True) as temporary:
                shutil.copytree(layout, temporary, dirs_exist_ok=True, copy_function=link_or_copy)
            return


def _assign_builders(rows: Sequence[_Row], builders: Sequence[str], engine: Callable[[], object]) -> None:
    """Choose the builder of each row; buildx chooses among its nodes. A row for which no builder has a node fails.

    Raises EngineError for a builder that does not answer.
    """
    if not builders and all(resolve.is_native_platform(row.job.platform) for row in rows):
        return
    if not builders:
        engine()
    names: Sequence[str | None] = builders or (None,)
    load = dict.fromkeys(names, 0)
    has = {builder: daemon.list_builder_platforms(builder) for builder in load}
    for row in sorted(rows, key=lambda row: -_sum_wheel_bytes(row.job)):
        able = [builder for builder in load if row.job.platform in has[builder]]
        if not able:
            row.advance(_no_node(row.job.platform, has))
            continue
        row.builder = min(able, key=lambda builder: load[builder])
        load[row.builder] += _sum_wheel_bytes(row.job)


def _no_node(platform: str, has: Mapping[str | None, Iterable[str]]) -> EngineError:
    nodes = "; ".join(f"{builder or 'the default builder'} has {', '.join(sorted(of))}" for builder, of in has.items())
    return EngineError(
        f"{platform}: no builder has a node for it: {nodes}",
        hint="add a machine of that kind (`docker buildx create --append --name BUILDER ENDPOINT`), and pass --builder",
    )


def _sum_wheel_bytes(job: Job) -> int:
    return 1 + sum(wheel.size for layer in job.pins.layers.values() for wheel in layer)


def _bake_rows(rows: Sequence[_Row], *, no_cache: bool) -> dict[str, DrydockError]:
    """Bake the plans of rows; return the errors of those that failed, by name."""
    by_builder = [[row for row in rows if row.builder == builder] for builder in {row.builder: 0 for row in rows}]
    errors, rest = _bake_groups(by_builder, no_cache=no_cache)
    if rest:
        names = ", ".join(row.job.variant.id for row in rest)
        log(f"going on with {names}: the failure of another row stopped them")
        errors |= _bake_groups([[row] for row in rest], no_cache=no_cache)[0]
    return errors


def _bake_groups(groups: Sequence[Sequence[_Row]], *, no_cache: bool) -> tuple[dict[str, DrydockError], list[_Row]]:
    """Bake groups of rows at the same time; return errors by name, and rows that the failure of another one stopped."""
    plans = [(_merge_plans([row.plan for row in group if row.plan]), group[0].builder) for group in groups]
    rows = {row.name: row for group in groups for row in group}
    begin = time.monotonic()

    def show(build_log: Log) -> None:
        for name, target in build_log.targets.items():
            if (row_step := rows[name].shown) and target.now:
                row_step.note(target.now)

    errors: dict[str, DrydockError] = {}
    rest: list[_Row] = []
    for group, ended in zip(groups, buildx.bake_together(plans, show, no_cache=no_cache), strict=True):
        for row in group:
            row.note(ended.seen, begin)
            if ended.error and row.name == ended.culprit:
                errors[row.name] = ended.error
            elif ended.error and not (ended.seen.targets[row.name].exported and row.is_exported):
                rest.append(row)
    return errors, rest


def _merge_plans(plans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bake file with the targets of several."""
    targets = {name: target for plan in plans for name, target in plan["target"].items()}
    return {"group": {"default": {"targets": [*targets]}}, "target": targets}
