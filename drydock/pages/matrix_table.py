"""Variants → the rows of `matrix`, as plain data and as a text table. Reads the locks."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from drydock.build.build_job import Job
from drydock.build.render import dockerfile_path
from drydock.cli.task_helpers import here
from drydock.config import explain
from drydock.config.matrix import read_matrix
from drydock.config.rows import own_rows
from drydock.core.errors import DrydockError, InputError, suggest_nearest
from drydock.core.project import LOWEST, Project
from drydock.inputs import others
from drydock.lock import lockfile
from drydock.lock.image_record import read_record
from drydock.lock.proof import (
    NOT_SHOWN,
    REPRODUCED,
    TIERS,
    select_current,
    strongest_tier,
)
from drydock.model.locked import Lock
from drydock.model.variant import Variant

NARROW = ("id", "aliases", "locked", "proof")
FOLDED = ("aliases", "locked", "proof")
"""Columns whose words may take several lines."""
COLUMNS = ("id", "aliases", "vllm", "platforms", "locked", "proof")


class State(NamedTuple):
    """The state of a variant: what its lock pins, and what has been shown of it."""

    locked: bool
    unresolved: tuple[str, ...]
    """Contexts that the lock could not pin."""
    proof: str
    """The strongest tier that was shown of today's foundation or image; else stand-in, rendered or none."""
    date: str
    """The day on which it was shown."""
    earlier_proof: str
    """A stronger tier that was shown of earlier inputs only, with its day: `packages, 2026-11-25`; else empty."""
    reproduced: bool
    """Whether two builds of today's foundation had the same digest."""
    digest: str
    """Of two identical builds of the same inputs, if the lock has one."""


def list_project_variants(address: str) -> tuple[Project, list[Variant]]:
    """Return the project of this command with its variants, or another one, by its address, with its own.

    Raises DrydockError.
    """
    if not address:
        return here(), [*read_matrix(here())]
    project = others.read_published_project(address)
    own_ids = own_rows(project)
    return project, [variant for variant in read_matrix(project) if variant.id in own_ids]


def explain_rows(
    project: Project, variants: Iterable[Variant], rows: Iterable[Mapping[str, Any]], *, whole: bool, json: bool
) -> str:
    """Return where rows, or all values of them, are from."""
    row_ids = {row["id"] for row in rows}
    explanations = [explain.explain_row(project, variant) for variant in variants if variant.id in row_ids]
    return (
        explain.format_explained_json(explanations, whole=whole)
        if json
        else explain.format_explained(explanations, whole=whole)
    )


def make_matrix_rows(project: Project, variants: Iterable[Variant]) -> list[dict[str, Any]]:
    """Return the rows of `matrix --json`: what was shown of today's inputs, and what of earlier ones."""
    return [describe_variant(variant, read_variant_state(project, variant)) for variant in variants]


def make_recorded_rows(project: Project, variants: Iterable[Variant]) -> list[dict[str, Any]]:
    """Return the same rows for committed pages: what the records have, of any inputs, so that no edit moves them."""
    return [describe_variant(variant, read_recorded_state(project, variant)) for variant in variants]


def describe_variant(variant: Variant, state: State) -> dict[str, Any]:
    """Return one row of `matrix --json`."""
    base = variant.base
    return {
        "id": variant.id,
        "accelerator": variant.accelerator,
        "aliases": list(variant.aliases),
        "stack": variant.stack,
        "vllm": variant.vllm.version,
        "python": variant.python,
        "base": f"debian:{base.suite}" if base.kind == "debian" else base.reference,
        "platforms": list(variant.platforms),
        "hermetic": variant.hermetic,
        "support": variant.support.summary if variant.support else "",
        "oldest_engine": variant.compression.oldest.model_dump(),
        **state._asdict(),
        "unresolved": list(state.unresolved),
    }


def read_variant_state(project: Project, variant: Variant) -> State:
    """Return a variant's state today: what is locked, what was shown of these inputs, and their digest."""
    lock = current_lock(project, variant)
    recorded = _describe_record(project, variant, lock)
    if lock is None or not read_record(project, variant.id).platforms:
        return recorded  # nothing can differ from a record that is not there: no checksum of inputs is computed
    jobs = [Job(variant=variant, lock=lock, platform=platform, project=project) for platform in lock.platforms]
    current = [select_current(job.record, job.foundation_key, job.inputs_sha256) for job in jobs]
    best_tier = strongest_tier(*current)
    digests = [digest for job in jobs if (digest := job.recorded_digest)]
    is_older = best_tier.tier != recorded.proof and recorded.date
    return recorded._replace(
        proof=_find_tested_tier(project, variant) if best_tier == NOT_SHOWN else best_tier.tier,
        date=best_tier.date,
        earlier_proof=f"{recorded.proof}, {recorded.date}" if is_older else "",
        reproduced=any(REPRODUCED in proof.foundation for proof in current),
        digest=digests[0] if digests else "",
    )


def read_recorded_state(project: Project, variant: Variant) -> State:
    """Return a variant's state as its lock and its record have it. Reads no file that an image is made from."""
    return _describe_record(project, variant, current_lock(project, variant))


def _describe_record(project: Project, variant: Variant, lock: Lock | None) -> State:
    if lock is None:
        return _UNLOCKED
    unresolved = tuple(sorted({name for pins in lock.platforms.values() for name in pins.unresolved}))
    locked_only = _UNLOCKED._replace(locked=not unresolved, unresolved=unresolved)
    if not dockerfile_path(project, variant).is_file():
        return locked_only
    platforms = read_record(project, variant.id).platforms.values()
    best_tier = strongest_tier(*platforms)
    digests = [platform.verified.digest for platform in platforms if platform.verified]
    return locked_only._replace(
        proof=_find_tested_tier(project, variant) if best_tier == NOT_SHOWN else best_tier.tier,
        date=best_tier.date,
        reproduced=any(REPRODUCED in platform.foundation for platform in platforms),
        digest=digests[0] if digests else "",
    )


def _find_tested_tier(project: Project, variant: Variant) -> str:
    """Return the tier that needs no record: tests of each release build and start drydock's own rows on stand-ins."""
    is_of_drydock = not project.below or project.owner_of(dockerfile_path(project, variant)) == LOWEST
    return "stand-in" if is_of_drydock else "rendered"


_UNLOCKED = State(locked=False, unresolved=(), proof="none", date="", earlier_proof="", reproduced=False, digest="")


def current_lock(project: Project, variant: Variant) -> Lock | None:
    """Return a variant's lock, or None if it is missing, broken or does not match the matrix."""
    path = lockfile.path_of_lock(project, variant.id)
    if not path.is_file():
        return None
    try:
        lock = lockfile.read_lock(path)
        lockfile.check_lock_inputs(variant, lock)
    except DrydockError:  # the column shows that it is not locked; `lock --check` shows why
        return None
    return lock


WIDEST = 104
"""Columns of a table; names are folded, not cut off, on a narrower terminal."""


def format_matrix_table(rows: Sequence[Mapping[str, Any]], columns: int = WIDEST) -> str:
    """Return rows as a table that is at most so many columns wide; a narrow one has only the columns `NARROW`.

    `--json` has more of each row.
    """
    names = COLUMNS if columns >= WIDEST else NARROW
    cells = [[_format_cell(row, name) for name in names] for row in rows]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(names):
        words = max((len(word) for row in cells for word in row[place].split()), default=0)
        whole = max((len(row[place]) for row in cells), default=0)
        table.add_column(name, min_width=max(len(name), words if name in FOLDED else whole), no_wrap=name not in FOLDED)
    for cell in cells:
        table.add_row(*cell)
    console = Console(width=min(columns, WIDEST), color_system=None, file=io.StringIO())
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    support_lines = [f"{row['id']}: supported {row['support']}" for row in rows if row["support"]]
    return "".join(f"{line}\n" for line in (*lines, *([""] if support_lines else []), *support_lines))


def _format_cell(row: Mapping[str, Any], column: str) -> str:
    if column == "platforms":
        return ", ".join(platform.removeprefix("linux/") for platform in row["platforms"])
    if column == "locked":
        return format_locked(row)
    if column == "proof":
        earlier = f" ({row['earlier_proof']}; inputs changed since)" if row["earlier_proof"] else ""
        return f"{row['proof']}{earlier}"
    if column == "aliases":  # one that begins with the row's id is its former id, too wide for a narrow terminal
        return ", ".join(alias for alias in row["aliases"] if not alias.startswith(row["id"]))
    return str(row[column])


class Filter(NamedTuple):
    """Which rows `matrix` shows; an empty value shows all."""

    accelerator: str = ""
    proof: str = ""
    """A tier."""
    unlocked: bool = False
    """Only rows with an input that is not pinned."""


def select_rows(rows: Sequence[dict[str, Any]], row_filter: Filter) -> list[dict[str, Any]]:
    """Return the rows that a filter shows. Raises InputError for an unknown accelerator or tier."""
    accelerators = {row["accelerator"] for row in rows}
    if row_filter.accelerator and row_filter.accelerator not in accelerators:
        hint = suggest_nearest(row_filter.accelerator, accelerators)
        raise InputError(f"--accelerator {row_filter.accelerator}: no such rows", hint=hint)
    if row_filter.proof and row_filter.proof not in (*TIERS, "none"):
        raise InputError(f"--proof {row_filter.proof}: unknown tier", hint=suggest_nearest(row_filter.proof, TIERS))
    return [
        row
        for row in rows
        if row_filter.accelerator in ("", row["accelerator"])
        and row_filter.proof in ("", row["proof"])
        and not (row_filter.unlocked and row["locked"])
    ]


def format_locked(row: Mapping[str, Any]) -> str:
    """Return the text of the column `locked`."""
    if row["unresolved"]:
        return f"all but {', '.join(row['unresolved'])}"
    return "yes" if row["locked"] else "no"
